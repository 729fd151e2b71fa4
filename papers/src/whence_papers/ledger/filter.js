
// a verdict's button shows its claims alone; pressed again, all of them
(() => {
  const buttons = [...document.querySelectorAll("button[data-verdict]")];
  const show = (verdict) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict));
    for (const claim of document.querySelectorAll(".claim")) claim.hidden = verdict !== null && claim.dataset.verdict !== verdict;
    for (const section of document.querySelectorAll("section.study")) section.hidden = !section.querySelector(".claim:not([hidden])");
  };
  for (const button of buttons) {
    button.addEventListener("click", () => show(button.getAttribute("aria-pressed") === "true" ? null : button.dataset.verdict));
  }
  const target = document.getElementById(location.hash.slice(1)); // a link to one claim opens it
  if (target && target.tagName === "DETAILS") target.open = true;
})();
