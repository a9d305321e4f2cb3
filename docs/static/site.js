// Code can be copied; whatever scrolls sideways can be reached and moved by keyboard.
document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = code.querySelector("pre").cloneNode(true);
      text.querySelectorAll(".gp, .go").forEach(part => part.remove()); // prompts and answers
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    code.append(button);
  }
  const scrolling = 'pre, .scroll, .table-wrapper, .cell_output .output, [style*="overflow"]';
  document.querySelectorAll(scrolling).forEach(box => { box.tabIndex = 0; });
  // The theme calls them headings and does not say of which level.
  document.querySelectorAll(".caption[role=heading]").forEach(one => { one.ariaLevel = "2"; });
});
