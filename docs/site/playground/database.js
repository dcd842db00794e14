// The one database of this page, for who asks for it: it lives as long as the page.

let opened;

/** Starts PostgreSQL and installs pyworker there, once. */
export function openDatabase() {
  opened ??= start();
  return opened;
}

function start() {
  const thread = new Worker(new URL("thread.js", import.meta.url), { type: "module" });
  const waiting = new Map();
  const listeners = new Set();
  let count = 0;
  const database = {
    /** Runs SQL: {results: [{columns, rows}], error}, an error's results being those before it. */
    run(sql) {
      count += 1;
      thread.postMessage({ id: count, sql });
      return new Promise((resolve) => waiting.set(count, resolve));
    },
    /** Rows of the last statement as objects, each value as text. */
    async rows(sql) {
      const { results, error } = await database.run(sql);
      if (error) throw Object.assign(new Error(error.message), error);
      const { columns, rows } = results.at(-1);
      return rows.map((row) => Object.fromEntries(row.map((value, at) => [columns[at], value])));
    },
    onNotified: (listener) => listeners.add(listener),
  };
  return new Promise((resolve, reject) => {
    thread.onerror = (problem) => reject(new Error(problem.message || "the database's script did not load"));
    thread.onmessage = ({ data }) => {
      if (data.ready) resolve(database);
      else if (data.ready === false) reject(new Error(data.why));
      else if ("notified" in data) listeners.forEach((listener) => listener(data.notified));
      else {
        waiting.get(data.id)(data);
        waiting.delete(data.id);
      }
    };
  });
}
