"use strict";
// CallList: the op calls of a run, column by column, in arrays that can be filtered and sorted at once.
const CallList = (() => {
  const PER_PIECE = 4096; // as call_table.py has it
  const known = new Map();

  class List {
    constructor(run, main) {
      this.run = run;
      this.all = main.all;
      this.ops = main.ops;
      this.modules = main.modules;
      this.wheres = main.wheres;
      const columns = main.columns;
      this.length = columns.op.length;
      for (const name of ["process", "op", "module", "where", "step", "verdict", "arguments", "results"]) {
        this[name] = Int32Array.from(columns[name]);
      }
      for (const name of ["forward", "backward", "severity"]) this[name] = Float64Array.from(columns[name]);
      this.id = Int32Array.from(columns.id);
      for (let place = 1; place < this.length; place++) this.id[place] += this.id[place - 1];
    }

    // places of calls that have all these words in their op, module or line, and the verdict, process and step
    find({ words = "", verdict = -1, process = -1, step = -1 }) {
      const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
      const matches = wanted.map((word) => [this.ops, this.modules, this.wheres].map((texts) => contains(texts, word)));
      const found = new Int32Array(this.length);
      let count = 0;
      next: for (let place = 0; place < this.length; place++) {
        if (verdict >= 0 && this.verdict[place] !== verdict) continue;
        if (process >= 0 && this.process[place] !== process) continue;
        if (step >= 0 && this.step[place] !== step) continue;
        for (const [ops, modules, wheres] of matches) {
          if (!ops[this.op[place]] && !modules[this.module[place]] && !wheres[this.where[place]]) continue next;
        }
        found[count++] = place;
      }
      return found.subarray(0, count);
    }

    place(process, id) {
      for (let place = 0; place < this.length; place++) {
        if (this.id[place] === id && this.process[place] === process) return place;
      }
      return -1;
    }

    address(place) {
      return place < 0 ? null : `call/${this.process[place]}-${this.id[place]}`;
    }

    // what was compared, and statistics
    async details(place) {
      const piece = await Store.part(this.run, `details${Math.floor(place / PER_PIECE)}`);
      if (!piece) return { values: [], statistics: [] };
      return { values: piece.values[place % PER_PIECE], statistics: piece.statistics[place % PER_PIECE] };
    }
  }

  function contains(texts, word) {
    return Uint8Array.from(texts, (text) => (text.toLowerCase().includes(word) ? 1 : 0));
  }

  async function of(run) {
    if (!known.has(run)) {
      const main = await Store.part(run, "calls");
      known.set(run, main ? new List(run, main) : null);
    }
    return known.get(run);
  }

  return { of, forget: () => known.clear(), NOT_COMPARED: 0, RIGHT: 1, WRONG: 2 };
})();
