"use strict";
// HeatMap: modules down, layers across, one table for each phase; colours by d3-scale. A cell leads to its worst call.
const HeatMap = (() => {
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // errors in allowances: up to 1 is right
  function errorColour() {
    const right = d3.scaleLinear().domain([0, 0.5, 1]).range([style("--heat-none"), style("--heat-low"), style("--heat-edge")]);
    const wrong = d3.scaleLinear().domain([0, 4]).range([style("--heat-wrong"), style("--heat-worst")]).clamp(true);
    return (value) => (value <= 1 ? right(value) : wrong(Math.log10(Math.min(value, 1e9))));
  }

  // 1 came first, 1/n as the n-th
  function orderColour() {
    const scale = d3.scaleLinear().domain([0, 3]).range([style("--heat-worst"), style("--heat-low")]).clamp(true);
    return (value) => scale(Math.log10(1 / value));
  }

  function draw({ data, phases, titles, colour, describe, open }) {
    return element("div", { class: "heat-maps" }, phases.map((phase, place) => {
      const cells = data.cells.filter((cell) => cell[2] === phase);
      return cells.length ? table(data, cells, titles[place], colour, describe, open) : null;
    }));
  }

  function table(data, cells, title, colour, describe, open) {
    const layers = [...new Set(cells.map((cell) => cell[1]))].sort((a, b) => a - b);
    const byPlace = new Map(cells.map((cell) => [`${cell[0]},${cell[1]}`, cell]));
    const patterns = [...new Set(cells.map((cell) => cell[0]))].sort((a, b) => a - b);
    const every = Math.ceil(layers.length / 16);
    const head = layers.map((layer, place) => element("th", { scope: "col" }, layer < 0 ? "–" : place % every ? "" : layer));
    const rows = patterns.map((pattern) => {
      const name = data.patterns[pattern] || t("outside of modules");
      const filled = layers.map((layer) => {
        const cell = byPlace.get(`${pattern},${layer}`);
        if (!cell) return element("td", {});
        const text = `${layer < 0 ? name : name.replace("*", layer)}, ${title}: ${describe(cell[3])}, ${Words.calls(cell[5])}`;
        const button = element("button", { type: "button", title: text, "aria-label": text, onclick: () => open(cell[4]) });
        button.style.background = colour(cell[3]);
        return element("td", {}, button);
      });
      return element("tr", {}, element("th", { scope: "row", title: name }, name), filled);
    });
    const body = element("table", { class: "heat" },
      element("caption", {}, title),
      element("thead", {}, element("tr", {}, element("td", {}, t("layer")), head)),
      element("tbody", {}, rows));
    return element("div", { class: "heat-map", tabindex: 0, role: "group", "aria-label": title }, body);
  }

  function legend() {
    const colour = errorColour();
    return element("p", { class: "legend" },
      [[0, t("as the reference")], [0.5, t("within the allowance")], [1, t("at its edge")], [3, t("wrong")], [1e4, t("10,000 times too far")]]
        .map(([value, text]) => {
          const box = element("i", {});
          box.style.background = colour(value);
          return element("span", {}, box, text);
        }));
  }

  return { draw, legend, errorColour, orderColour };
})();
