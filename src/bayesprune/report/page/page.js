"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // Tables: a click on a heading sorts by its column, a second one the other way round. Empty cells stay at the end.
  const compare = (left, right) => {
    const [a, b] = [Number(left), Number(right)];
    return Number.isNaN(a) || Number.isNaN(b) ? left.localeCompare(right, "en", { numeric: true }) : a - b;
  };
  const sortBy = (heading) => {
    const table = heading.closest("table");
    const descending = heading.getAttribute("aria-sort") === "ascending";
    const column = heading.cellIndex;
    const value = (row) => row.cells[column].dataset.value ?? "";
    const rows = all("tbody tr", table);
    rows.sort((left, right) => {
      const [a, b] = [value(left), value(right)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return descending ? compare(b, a) : compare(a, b);
    });
    all("th", table).forEach((other) => other.setAttribute("aria-sort", "none"));
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  };
  all("th button").forEach((button) => button.addEventListener("click", () => sortBy(button.closest("th"))));

  // Points: what is known about one is shown beside it, for the mouse, the keyboard and a finger.
  const tip = document.getElementById("tip");
  const show = (point) => {
    const [title, ...lines] = point.dataset.tip.split("\n");
    const head = document.createElement("b");
    head.textContent = title;
    tip.replaceChildren(head, lines.join("\n"));
    tip.style.setProperty("--c", getComputedStyle(point).color);
    tip.hidden = false;
    const box = point.querySelector(".mark").getBoundingClientRect();
    const width = document.documentElement.clientWidth;
    const left = box.left + box.width / 2 + 14;
    const fits = left + tip.offsetWidth < width - 8;
    tip.style.left = `${window.scrollX + Math.max(8, fits ? left : box.left - tip.offsetWidth - 10)}px`;
    tip.style.top = `${window.scrollY + Math.max(8, box.top - tip.offsetHeight / 2)}px`;
  };
  const hide = () => { tip.hidden = true; };
  all(".point").forEach((point) => {
    ["mouseenter", "focus", "click"].forEach((name) => point.addEventListener(name, () => show(point)));
    ["mouseleave", "blur"].forEach((name) => point.addEventListener(name, hide));
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // Legends switch methods on and off, and bring one forward while the mouse is over its name.
  const flip = (button) => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    return on;
  };
  all(".legend button").forEach((button) => {
    const chart = button.closest(".chart");
    const own = () => all(`.${button.dataset.switches}`, chart);
    button.addEventListener("click", () => {
      const on = flip(button);
      own().forEach((part) => part.classList.toggle("off", !on));
    });
    const light = (lit) => {
      chart.classList.toggle("focus", lit && button.dataset.switches !== "printed" && button.getAttribute("aria-pressed") === "true");
      own().forEach((part) => part.classList.toggle("lit", lit));
    };
    button.addEventListener("mouseenter", () => light(true));
    button.addEventListener("mouseleave", () => light(false));
  });

  // The menu shows and hides whole networks.
  all(".menu button").forEach((button) => button.addEventListener("click", () => {
    document.getElementById(button.getAttribute("aria-controls")).hidden = !flip(button);
  }));
})();
