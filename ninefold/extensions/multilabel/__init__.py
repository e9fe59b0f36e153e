"""Several labels of an example or a pixel (task=multilabel), and images of drawn shapes."""
