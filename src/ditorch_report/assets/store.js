"use strict";
// Store: the pieces of data, unpacked when they are asked for. A live page gets them from its server.
const Store = (() => {
  const unpacked = new Map();
  let fetched = null; // name: base64, of a live page

  async function unpack(base64) {
    const binary = atob(base64);
    const bytes = new Uint8Array(binary.length);
    for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function packed(name) {
    if (fetched) return fetched[name];
    const found = document.querySelector(`script[data-piece="${CSS.escape(name)}"]`);
    return found ? found.textContent : undefined;
  }

  function get(name) {
    if (!unpacked.has(name)) {
      const base64 = packed(name);
      unpacked.set(name, base64 === undefined ? Promise.resolve(null) : unpack(base64));
    }
    return unpacked.get(name);
  }

  // of a run: null where it has no such piece
  const part = (run, name) => (run.pieces[name] ? get(run.pieces[name]) : Promise.resolve(null));

  function take(pieces) {
    fetched = pieces;
    unpacked.clear();
    CallList.forget();
  }

  return { get, part, take };
})();
