"use strict";
// Address: what the reader looks at, in the part of the address after #: page/item?name=value. It can be sent to others.
const Address = (() => {
  function read() {
    const [path, query] = location.hash.slice(1).split("?");
    const [page, ...item] = path.split("/");
    return { page: decode(page) || "overview", item: decode(item.join("/")), query: new URLSearchParams(query || "") };
  }

  function decode(text) {
    try {
      return decodeURIComponent(text);
    } catch {
      return "";
    }
  }

  function of(page, query = {}) {
    const parameters = new URLSearchParams();
    const run = read().query.get("run");
    if (run && !("run" in query)) parameters.set("run", run);
    for (const [name, value] of Object.entries(query)) if (value !== "" && value !== null) parameters.set(name, value);
    const text = parameters.toString();
    return `#${page}${text ? `?${text}` : ""}`;
  }

  // changes one value without a new entry in the browser's history
  function set(name, value) {
    const { page, item, query } = read();
    if (value === "" || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
    const text = query.toString();
    const path = item ? `${page}/${item}` : page;
    history.replaceState(null, "", `#${path}${text ? `?${text}` : ""}`);
  }

  return { read, of, set };
})();
