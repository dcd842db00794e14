// PostgreSQL in a thread of its own: the page stays quick while the database works.
//
// A message {id, sql, alone} is answered by {id, results, error}; {notified} comes by itself.
import { PGlite } from "./pglite/index.js";
import { statements } from "./sql.js";

const script = fetch(new URL("install.sql", import.meta.url)).then((answer) => answer.text());
const opened = open();
let last = opened; // one block after the other: there is one session, which a block may have in a transaction

async function open() {
  const database = await PGlite.create();
  // Every value as text, as psql has it: a bigint stays whole, and a time is PostgreSQL's.
  for (const type of Object.keys(database.parsers)) database.parsers[type] = (text) => text;
  await database.exec(await script);
  database.onNotification((_channel, payload) => postMessage({ notified: payload }));
  await database.exec("listen pyworker");
  return database;
}

/** Each statement by itself, as psql would run it, up to the first error. */
async function run(sql) {
  const database = await opened;
  const results = [];
  let error = null;
  for (const statement of statements(sql)) {
    try {
      const [{ fields, rows }] = await database.exec(statement, { rowMode: "array" });
      results.push({ columns: fields.map((field) => field.name), rows });
    } catch (problem) {
      const { code, message, hint } = problem;
      error = { code, message, hint };
      break;
    }
  }
  await database.exec(error ? "rollback" : "commit"); // of a transaction that the block left open
  return { results, error };
}

onmessage = ({ data: { id, sql } }) => {
  last = last.then(
    async () => postMessage({ id, ...(await run(sql)) }),
    (problem) => postMessage({ id, results: [], error: { message: String(problem) } }),
  );
};
opened.then(
  () => postMessage({ ready: true }),
  (problem) => postMessage({ ready: false, why: String(problem?.message ?? problem) }),
);
