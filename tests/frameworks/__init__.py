"""What is printed for other frameworks, held against them: `make frameworks` installs them."""
