// The page can be read without any of this.
"use strict";

for (const button of document.querySelectorAll("[data-copy]")) {
  const label = button.textContent;
  const source = document.getElementById(button.dataset.copy);
  button.hidden = false;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {  // a page from a file or over http may not write there: select it, to be copied by hand
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}
