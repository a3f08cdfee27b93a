"use strict";
// FlameGraph: time by phase, module and op; widths by d3-hierarchy. A click makes a part fill the width, Escape goes back.
const FlameGraph = (() => {
  const ROW = 24;
  const MIN_WIDTH = 0.0015; // of the whole: less cannot be seen

  class Graph {
    constructor(tree) {
      this.root = d3.hierarchy(tree, (node) => node.inner).sum((node) => (node.inner ? 0 : node.time));
      d3.partition().round(false)(this.root.sort((a, b) => b.value - a.value));
      this.focus = this.root;
      this.area = element("div", { class: "flame", role: "group", "aria-label": t("Time by module and op") });
      this.told = element("p", { class: "told", role: "status" });
      this.back = element("button", { type: "button", class: "quiet", onclick: () => this.zoom(this.root) }, t("Show all"));
      this.area.addEventListener("keydown", (event) => {
        if (event.key === "Escape" && this.focus !== this.root) this.zoom(this.focus.parent || this.root);
      });
      this.element = element("div", {}, this.area, element("div", { class: "flame-foot" }, this.told, this.back));
      this.draw();
    }

    zoom(node) {
      this.focus = node;
      this.draw();
      const chosen = this.area.querySelector(".focus");
      if (chosen) chosen.focus();
    }

    draw() {
      const { x0, x1 } = this.focus;
      const nodes = this.root.descendants().filter((node) => node.depth > 0 && node.x1 > x0 && node.x0 < x1);
      const shown = nodes.filter((node) => (Math.min(node.x1, x1) - Math.max(node.x0, x0)) / (x1 - x0) > MIN_WIDTH);
      this.area.style.height = `${Math.max(...shown.map((node) => node.depth), 1) * ROW}px`;
      Elements.replace(this.area, shown.map((node) => this.box(node, x0, x1)));
      this.back.hidden = this.focus === this.root;
      this.tell(this.focus);
    }

    box(node, x0, x1) {
      const left = (Math.max(node.x0, x0) - x0) / (x1 - x0);
      const width = (Math.min(node.x1, x1) - Math.max(node.x0, x0)) / (x1 - x0);
      const group = node.ancestors().reverse()[1].data.name;
      const kind = { forward: "forward", backward: "backward", collectives: "collectives" }[group];
      const box = element(
        "button",
        {
          type: "button", "aria-label": this.text(node), title: this.text(node),
          class: `${kind} ${node.children ? "module" : "leaf"}${node === this.focus ? " focus" : ""}`,
          onclick: () => this.zoom(node), onmouseenter: () => this.tell(node), onfocus: () => this.tell(node),
        },
        width > 0.02 ? this.name(node) : "",
      );
      box.style.left = `${left * 100}%`;
      box.style.width = `${width * 100}%`;
      box.style.top = `${(node.depth - 1) * ROW}px`;
      return box;
    }

    name(node) {
      if (node.depth === 0) return t("all");
      if (node.depth === 1) return t(node.data.name);
      if (node.data.name === "—") return t("outside of modules");
      return node.children ? node.data.name : Words.shortOp(node.data.name);
    }

    text(node) {
      const names = node.ancestors().reverse().slice(1).map((one) => (one.children || one.depth < 2 ? this.name(one) : one.data.name));
      const share = Words.percent(node.value / (this.root.value || 1));
      const calls = node.data.calls ? `, ${Words.calls(node.data.calls)}` : "";
      return `${names.join(" › ") || t("all")}: ${Words.milliseconds(node.value)}, ${share}${calls}`;
    }

    tell(node) {
      this.told.textContent = this.text(node);
    }
  }

  return { draw: (tree) => new Graph(tree).element };
})();
