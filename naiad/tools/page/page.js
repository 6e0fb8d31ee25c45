(() => {
  const root = document.documentElement, tip = document.getElementById("tip");
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.querySelectorAll(".mark").forEach(mark => {
    mark.querySelector("title").remove();
    mark.addEventListener("mousemove", event => {
      tip.textContent = mark.dataset.tip; tip.hidden = false;
      tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
      tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    });
    mark.addEventListener("mouseleave", () => { tip.hidden = true; });
  });
  const number = text => { const found = parseFloat(text.replace(/,/g, "")); return isNaN(found) ? null : found; };
  document.querySelectorAll("table.sortable th").forEach(th => th.addEventListener("click", () => {
    const body = th.closest("table").tBodies[0], column = th.cellIndex, up = th.dataset.up = th.dataset.up === "1" ? "0" : "1";
    const value = row => { const text = row.cells[column].textContent; return number(text) ?? text; };
    [...body.rows].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (up === "1" ? 1 : -1); }).forEach(row => body.append(row));
  }));
})();
