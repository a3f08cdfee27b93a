"use strict";
// Table: a real table that sorts by its columns, and holds only the rows that can be seen, however many there are.
//
// A column is {title, value: place => number or text, show: place => text or element, numeric, minor, width}; `minor`
// ones are left out on a phone; without a width, it is as wide as its texts ask for. Rows are places in the caller's data.
// `wraps`: long texts go on in the next line.
const Table = (() => {
  const ROW_HEIGHT = 34;
  const SPARE_ROWS = 12;
  const FEW_ROWS = 30; // need no window of their own
  const PRINTED_ROWS = 1000; // paper does not scroll
  const SAMPLED_ROWS = 40; // whose texts decide how wide columns are
  const SHORT = 18; // letters
  const LEAST = 9; // that a column of long texts has room for
  const USUAL = 0.95; // of the rows have texts that their column has room for
  const NARROW = "(max-width: 860px)"; // as in report.css

  class SortedTable {
    constructor({ label, columns, rows, sort = "", open = null, name = "", wraps = false }) {
      Object.assign(this, { label, columns, open, name, wraps, source: rows });
      this.sorted = Address.read().query.get(`${name}sort`) ?? sort;
      this.selected = -1;
      this.head = element("thead");
      this.body = element("tbody");
      this.table = element("table", { "aria-label": label }, this.head, this.body);
      this.root = element("div", { class: "rows", tabindex: 0, role: "group", "aria-label": label }, this.table);
      this.root.addEventListener("scroll", () => this.draw(), { passive: true });
      this.root.addEventListener("printing", (event) => this.draw(event.detail ? PRINTED_ROWS : FEW_ROWS));
      this.root.addEventListener("keydown", (event) => this.key(event));
      this.body.addEventListener("click", (event) => this.click(event));
      this.update(rows);
    }

    // Columns of short texts get what these need, those of long ones share the rest; where none is long, all share it.
    // Where the window has not so much room, the table is wider than the window: it is scrolled, and no number is cut.
    widthsFor(rows) {
      const every = Math.max(1, Math.floor(rows.length / SAMPLED_ROWS));
      const sampled = Array.from(rows).filter((_, number) => number % every === 0);
      const narrow = matchMedia(NARROW).matches;
      const padding = narrow ? 18 : 26;
      const letters = this.columns.map((column) => {
        const lengths = sampled.map((place) => lettersOf(textOf(column.show ? column.show(place) : column.value(place)))).sort((a, b) => a - b);
        const room = column.numeric ? lengths[lengths.length - 1] : lengths[Math.ceil(USUAL * (lengths.length - 1))];
        const title = narrow ? column.title.split(/\s+/).reduce((most, word) => Math.max(most, lettersOf(word)), 0) : lettersOf(column.title) + 2;
        return Math.max(title, room || 0);
      });
      const seen = letters.map((_, number) => !(narrow && this.columns[number].minor));
      const shared = letters.filter((_, number) => seen[number] && !this.columns[number].width);
      const space = padding / 9.3; // of 0.62em
      const all = shared.reduce((sum, count) => sum + count + space, 0);
      const percent = (column) => ((column.width || "").endsWith("%") ? parseFloat(column.width) : 0);
      const given = this.columns.reduce((sum, column, number) => sum + (seen[number] ? percent(column) : 0), 0);
      const least = letters.filter((_, number) => seen[number] && !percent(this.columns[number])).map((count) => (count > SHORT ? LEAST : count));
      this.table.style.minWidth = `max(100%, calc((${least.reduce((sum, count) => sum + count, 0)} * 0.62em + ${least.length * padding}px) * ${100 / (100 - given)}))`;
      return letters.map((count) => {
        if (shared.every((one) => one <= SHORT)) return `${((100 - given) * (count + space)) / all}%`;
        return count > SHORT ? "" : `calc(${count} * 0.62em + ${padding}px)`;
      });
    }

    update(rows) {
      if (!this.widths || !this.source.length) {
        this.widths = this.widthsFor(rows);
        this.drawHead();
      }
      this.source = rows;
      this.rows = this.order(rows);
      this.table.setAttribute("aria-rowcount", this.rows.length + 1);
      this.root.classList.toggle("tall", this.rows.length > FEW_ROWS);
      this.root.classList.toggle("wraps", this.wraps && this.rows.length <= FEW_ROWS); // else rows have one height
      this.first = this.last = -1;
      this.root.scrollTop = 0;
      this.selected = -1;
      this.draw();
    }

    order(rows) {
      const column = this.columns[Math.abs(Number(this.sorted)) - 1];
      if (!this.sorted || !column) return rows;
      const falling = this.sorted.startsWith("-") ? -1 : 1;
      const keys = column.numeric ? Float64Array.from(rows, column.value) : ranks(Array.from(rows, column.value));
      const order = Int32Array.from(rows, (_, number) => number);
      order.sort((a, b) => falling * (keys[a] - keys[b]) || a - b);
      return order.map((number) => rows[number]);
    }

    drawHead() {
      const cells = this.columns.map((column, number) => {
        const sorted = Math.abs(Number(this.sorted)) === number + 1;
        const falling = this.sorted.startsWith("-");
        const state = sorted ? (falling ? "descending" : "ascending") : "none";
        const mark = sorted ? (falling ? " ↓" : " ↑") : "";
        const button = element("button", { type: "button", onclick: () => this.sort(number) }, column.title + mark);
        const cell = element("th", { scope: "col", "aria-sort": state, class: classes(column) }, button);
        cell.style.width = column.width || this.widths[number];
        return cell;
      });
      Elements.replace(this.head, element("tr", { "aria-rowindex": 1 }, cells));
    }

    sort(number) {
      const column = this.columns[number];
      const again = Math.abs(Number(this.sorted)) === number + 1;
      const falling = again ? !this.sorted.startsWith("-") : Boolean(column.numeric);
      this.sorted = `${falling ? "-" : ""}${number + 1}`;
      Address.set(`${this.name}sort`, this.sorted);
      this.drawHead();
      this.update(this.source);
      this.head.querySelectorAll("button")[number].focus();
    }

    draw(whole = FEW_ROWS) {
      const few = this.rows.length <= whole;
      const top = few ? 0 : Math.max(0, Math.floor(this.root.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
      const seen = few ? this.rows.length : Math.ceil((this.root.clientHeight || 600) / ROW_HEIGHT) + 2 * SPARE_ROWS;
      const bottom = Math.min(this.rows.length, top + seen);
      if (top === this.first && bottom === this.last) return;
      this.first = top;
      this.last = bottom;
      const rows = [];
      for (let number = top; number < bottom; number++) rows.push(this.row(number));
      Elements.replace(this.body, this.space(top), rows, this.space(this.rows.length - bottom));
    }

    space(count) {
      if (!count) return null;
      const cell = element("td", { style: { height: `${count * ROW_HEIGHT}px` } });
      return element("tr", { class: "space", "aria-hidden": "true" }, cell);
    }

    row(number) {
      const place = this.rows[number];
      const cells = this.columns.map((column, index) => {
        const shown = column.show ? column.show(place) : column.value(place);
        const tag = index === 0 ? "th" : "td";
        const whole = typeof shown === "string" && shown.length > 20 ? shown : null; // it may be cut
        return element(tag, { class: classes(column), scope: index === 0 ? "row" : null, title: whole }, shown);
      });
      const chosen = number === this.selected;
      return element(
        "tr",
        { "data-number": number, "aria-rowindex": number + 2, class: chosen ? "selected" : null, "aria-selected": chosen ? "true" : null },
        cells,
      );
    }

    click(event) {
      const row = event.target.closest("tr[data-number]");
      if (!row || !this.open || event.target.closest("a, button")) return;
      if (!String(getSelection())) this.open(this.rows[Number(row.dataset.number)]);
    }

    key(event) {
      const move = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15 }[event.key];
      if (move && this.open) {
        event.preventDefault();
        this.select(Math.max(0, Math.min(this.rows.length - 1, this.selected + move)));
      } else if (event.key === "Enter" && this.selected >= 0 && event.target === this.root) {
        this.open(this.rows[this.selected]);
      }
    }

    select(number) {
      this.selected = number;
      const top = number * ROW_HEIGHT;
      if (top < this.root.scrollTop) this.root.scrollTop = top;
      const visible = this.root.clientHeight - 2 * ROW_HEIGHT;
      if (top > this.root.scrollTop + visible) this.root.scrollTop = top - visible;
      this.first = -1;
      this.draw();
    }
  }

  const textOf = (shown) => (shown instanceof Node ? shown.textContent + (shown.className.startsWith("tag") ? "  " : "") : String(shown));

  // Chinese ones take the room of two
  const lettersOf = (text) => text.length + (text.match(/[\u3000-\uffff]/g) || []).length;

  // of texts: the place of each among the distinct ones, so that numbers are compared
  function ranks(texts) {
    const places = new Map([...new Set(texts)].sort().map((text, place) => [text, place]));
    return Int32Array.from(texts, (text) => places.get(text));
  }

  function classes(column) {
    const found = [column.numeric ? "number" : "", column.minor ? "minor" : "", column.class || ""].filter(Boolean);
    return found.length ? found.join(" ") : null;
  }

  // a plain array as rows
  const places = (list) => Int32Array.from(list, (_, place) => place);

  return { SortedTable, places };
})();
