// Graphile Worker: run() with its defaults and 10 jobs at once; add_job by SQL, as its documentation has it for
// adds in a transaction. It releases the jobs of a dead worker after 4 hours, and has no other setting for it.
import { run as runWorker, runMigrations } from "graphile-worker";
import pg from "pg";
import { produce, run, up } from "./lines.mjs";

const connectionString = process.env.DATABASE_URL;
const ADD = `select graphile_worker.add_job($1, $2::json, queue_name => $3, run_at => now() + $4 * interval '1 s',
  max_attempts => $5, job_key => $6)`;

const handler = (payload, { job }) => run(payload, job.id, job.attempts);
const verbs = {
  setup: () => runMigrations({ connectionString }),
  produce: () =>
    produce(new pg.Pool({ connectionString, max: 2 }), (client, { kind, key, delay }, payload) =>
      client.query(ADD, [kind, JSON.stringify(payload), kind === "sequence" ? key : null, delay,
        kind === "once" ? 1 : 25, kind === "unique" ? key : null])),
  async work() {
    const taskList = { plain: handler, once: handler, unique: handler, sequence: handler };
    const runner = await runWorker({ connectionString, concurrency: 10, taskList });
    up();
    await runner.promise;
  },
};
await verbs[process.argv[2]]();
if (process.argv[2] !== "produce") process.exit(0);
