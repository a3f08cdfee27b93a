"use strict";
// TimeLine: every call on the host's threads and the devices' streams, on a canvas; zoom by d3-zoom, axis by d3-axis.
const TimeLine = (() => {
  const TRACK = 40;
  const AXIS = 24;
  const LANES = 3; // calls inside calls are drawn lower

  class Line {
    constructor(data, list, run) {
      this.data = data;
      this.list = list;
      this.collectives = new Set(data.collectives);
      this.tracks = data.tracks.map((track) => decoded(track, data.unit));
      this.end = Math.max(...this.tracks.map((track) => track.until), 1);
      this.canvas = element("canvas", {
        tabindex: 0, role: "img",
        "aria-label": t("Time line of {0} tracks over {1}; the table of calls has the same times", this.tracks.length, Words.time(this.end)),
      });
      this.axis = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      this.axis.setAttribute("class", "axis");
      this.axis.setAttribute("aria-hidden", "true");
      this.told = element("p", { class: "told", role: "status" }, t("Scroll or pinch to zoom, drag to move, click a call to open it."));
      const ranks = run.table.length > 1 ? run.table.map((process) => t("rank {0}", process.rank)) : [];
      for (const track of this.tracks) track.rank = ranks[track.process] || "";
      const names = this.tracks.map((track) => element("span", { title: `${track.rank} ${track.name}`.trim() },
        track.rank ? element("b", {}, track.rank) : null, element("b", {}, track.name)));
      this.names = element("div", { class: "track-names", "aria-hidden": "true" }, names);
      this.plot = element("div", { class: "track-plot" }, this.axis, this.canvas);
      const button = (text, label, act) => element("button", { type: "button", class: "quiet", "aria-label": label, onclick: act }, text);
      const buttons = element("div", { class: "buttons" },
        button("+", t("Zoom in"), () => this.zoomBy(2)), button("−", t("Zoom out"), () => this.zoomBy(0.5)),
        button(t("Show all"), t("Show all"), () => this.reset()));
      this.element = element("div", { class: "time-line" },
        element("div", { class: "flame-foot" }, this.told, buttons), element("div", { class: "tracks" }, this.names, this.plot));
      this.behaviour = d3.zoom().scaleExtent([1, this.end / 5 + 1]).on("zoom", (event) => this.zoomed(event.transform));
      this.canvas.addEventListener("mousemove", (event) => this.point(event));
      this.canvas.addEventListener("click", (event) => this.open(event));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.listeners = [];
      new ResizeObserver(() => this.resize()).observe(this.plot);
    }

    resize() {
      this.width = this.plot.clientWidth;
      if (!this.width) return;
      this.height = this.tracks.length * TRACK;
      const ratio = devicePixelRatio || 1;
      this.canvas.width = this.width * ratio;
      this.canvas.height = this.height * ratio;
      this.canvas.style.height = `${this.height}px`;
      this.axis.setAttribute("width", this.width);
      this.axis.setAttribute("height", AXIS);
      this.base = d3.scaleLinear().domain([0, this.end]).range([0, this.width]);
      this.behaviour.translateExtent([[0, 0], [this.width, this.height]]).extent([[0, 0], [this.width, this.height]]);
      d3.select(this.canvas).call(this.behaviour).on("dblclick.zoom", null);
      this.zoomed(d3.zoomTransform(this.canvas));
    }

    zoomed(transform) {
      this.scale = transform.rescaleX(this.base);
      this.canvas.dataset.zoom = transform.k.toFixed(2);
      this.draw();
      for (const listener of this.listeners) listener(this.scale.domain());
    }

    zoomBy(factor) {
      d3.select(this.canvas).call(this.behaviour.scaleBy, factor);
    }

    reset() {
      d3.select(this.canvas).call(this.behaviour.transform, d3.zoomIdentity);
    }

    key(event) {
      const act = {
        "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5), 0: () => this.reset(),
        ArrowLeft: () => this.move(80), ArrowRight: () => this.move(-80),
      }[event.key];
      if (act) {
        event.preventDefault();
        event.stopPropagation();
        act();
      }
    }

    move(pixels) {
      d3.select(this.canvas).call(this.behaviour.translateBy, pixels / d3.zoomTransform(this.canvas).k, 0);
    }

    draw() {
      const axis = d3.axisTop(this.scale).ticks(Math.max(2, this.width / 110)).tickFormat((value) => (value ? Words.time(value) : ""));
      d3.select(this.axis).selectAll("g").remove();
      d3.select(this.axis).append("g").attr("transform", `translate(0,${AXIS - 1})`).call(axis);
      const paint = this.canvas.getContext("2d");
      const ratio = devicePixelRatio || 1;
      paint.setTransform(ratio, 0, 0, ratio, 0, 0);
      paint.clearRect(0, 0, this.width, this.height);
      const style = getComputedStyle(document.documentElement);
      const colours = ["--forward", "--backward", "--collectives", "--bad"].map((name) => style.getPropertyValue(name));
      this.tracks.forEach((track, place) => this.drawTrack(paint, track, place * TRACK, colours, style));
    }

    drawTrack(paint, track, top, colours, style) {
      paint.fillStyle = style.getPropertyValue("--track");
      paint.fillRect(0, top + 2, this.width, TRACK - 4);
      this.drawEvents(paint, track, top, colours, style);
      if (this.names.offsetParent) return;
      paint.fillStyle = style.getPropertyValue("--muted"); // on a phone there is no room beside it
      paint.font = "10px system-ui, sans-serif";
      paint.fillText(`${track.rank} ${track.name}`.trim(), 4, top + 12);
    }

    drawEvents(paint, track, top, colours, style) {
      const [from, to] = this.scale.domain();
      const last = new Float64Array(LANES).fill(-1); // the pixel that a lane is painted to
      for (let place = track.firstAfter(from); place < track.start.length && track.start[place] < to; place++) {
        const left = this.scale(track.start[place]);
        const right = Math.max(left + 0.7, this.scale(track.start[place] + track.duration[place]));
        const lane = track.lane[place];
        if (right < last[lane] + 0.5) continue; // nothing new to be seen
        last[lane] = right;
        paint.fillStyle = colours[this.kind(track, place)];
        const inset = 4 + lane * 8;
        paint.fillRect(left, top + inset, right - left, TRACK - inset - 4);
        if (right - left > 60 && lane === 0) this.label(paint, track, place, left, right, top, style);
      }
    }

    label(paint, track, place, left, right, top, style) {
      paint.save();
      paint.beginPath();
      paint.rect(left, top, right - left - 4, TRACK);
      paint.clip();
      paint.fillStyle = style.getPropertyValue("--on-colour");
      paint.font = "11px system-ui, sans-serif";
      paint.fillText(Words.shortOp(this.data.ops[track.op[place]]), Math.max(left, 0) + 5, top + 17);
      paint.restore();
    }

    kind(track, place) {
      const call = track.call[place];
      if (call >= 0 && this.list && this.list.verdict[call] === CallList.WRONG) return 3;
      return this.collectives.has(track.op[place]) ? 2 : track.phase[place];
    }

    at(event) {
      const box = this.canvas.getBoundingClientRect();
      const track = this.tracks[Math.floor((event.clientY - box.top) / TRACK)];
      if (!track) return null;
      const moment = this.scale.invert(event.clientX - box.left);
      const slack = Math.abs(this.scale.invert(2) - this.scale.invert(0));
      let found = -1;
      for (let place = track.firstAfter(moment); place < track.start.length && track.start[place] <= moment + slack; place++) {
        if (track.start[place] + track.duration[place] >= moment - slack) found = place;
      }
      return found < 0 ? null : { track, place: found };
    }

    point(event) {
      const found = this.at(event);
      this.canvas.style.cursor = found ? "pointer" : "grab";
      if (!found) return;
      const { track, place } = found;
      const call = track.call[place];
      const module = this.list && call >= 0 ? this.list.modules[this.list.module[call]] : "";
      const phase = t(["forward", "backward", "collective"][this.collectives.has(track.op[place]) ? 2 : track.phase[place]]);
      this.told.textContent = `${this.data.ops[track.op[place]]}, ${phase}, ${Words.time(track.duration[place])}${module ? `, ${module}` : ""}`;
    }

    open(event) {
      const found = this.at(event);
      const call = found ? found.track.call[found.place] : -1;
      if (call >= 0 && this.list) location.hash = Address.of(this.list.address(call));
    }
  }

  function decoded(track, unit) {
    const start = Float64Array.from(track.start);
    for (let place = 1; place < start.length; place++) start[place] += start[place - 1];
    const duration = Float64Array.from(track.duration, (value) => value * unit);
    const lane = new Uint8Array(start.length);
    const open = [];
    let until = 0;
    let longest = 0;
    for (let place = 0; place < start.length; place++) {
      start[place] *= unit;
      const end = start[place] + duration[place];
      while (open.length && open[open.length - 1] <= start[place] + 1e-6) open.pop();
      lane[place] = Math.min(open.length, LANES - 1);
      open.push(end);
      until = Math.max(until, end);
      longest = Math.max(longest, duration[place]);
    }
    const firstAfter = (moment) => {
      let low = 0;
      let high = start.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[middle] < moment - longest) low = middle + 1;
        else high = middle;
      }
      return low;
    };
    return { ...track, start, duration, lane, until, firstAfter };
  }

  return { draw: (data, list, run) => new Line(data, list, run) };
})();
