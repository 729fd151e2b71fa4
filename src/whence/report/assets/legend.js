
"use strict";
// The legend: a pressed button highlights its arm in every figure and table row of the study.
(() => {
  function connectLegend(legend) {
    const study = legend.closest(".study");
    const keys = [...legend.querySelectorAll(".key[data-arm]")];
    const all = legend.querySelector(".all");
    const update = () => {
      const on = new Set(keys.filter((key) => key.getAttribute("aria-pressed") === "true").map((key) => key.dataset.arm));
      study.classList.toggle("picked", on.size > 0);
      all.hidden = on.size === 0;
      study.querySelectorAll("g[data-arm], tr[data-arm]").forEach((part) => part.classList.toggle("on", on.has(part.dataset.arm)));
    };
    keys.forEach((key) => key.addEventListener("click", () => {
      key.setAttribute("aria-pressed", String(key.getAttribute("aria-pressed") !== "true"));
      update();
    }));
    all.addEventListener("click", () => { keys.forEach((key) => key.setAttribute("aria-pressed", "false")); update(); });
  }

  document.querySelectorAll(".legend").forEach(connectLegend);
  // expand everything for print
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
