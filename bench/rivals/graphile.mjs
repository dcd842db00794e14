// Graphile Worker. For throughput the settings of its performance page: a local queue of 500, completions in
// batches, 24 jobs at once.
// https://worker.graphile.org/docs/performance
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { calls, latency, noop, payload, serve, sleep, stamp } from "./repl.mjs";

const connectionString = process.env.DATABASE_URL;
const logger = new Logger(() => (level, message) => { if (level === "error") console.error(message); });
const fast = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };

let utils;
let loops = 1;

serve({
  setup: () => runMigrations({ connectionString, logger }),
  async connect(connections) {
    loops = connections;
    const pgPool = new pg.Pool({ connectionString, max: connections });
    utils = await makeWorkerUtils({ pgPool, logger });
  },
  add: (n) => calls(n, loops, (i) => utils.addJob("noop", payload(i))),
  add_keyed: (n, keys, arrays) =>
    calls(n, 1, (i) =>
      utils.addJob("noop", arrays ? [i] : payload(i), { jobKey: `k${(i * 7919) % keys}` })),
  bulk: (n) =>
    calls(Math.ceil(n / 1000), 1, (batch) =>
      utils.addJobs(Array.from({ length: Math.min(1000, n - batch * 1000) }, (_, i) =>
        ({ identifier: "noop", payload: payload(i) })))),
  latency: (n, gap) => latency(n, gap, (moment) => utils.addJob("stamp", moment)),
  async work(concurrency, quick) {
    await run({
      noHandleSignals: true,
      taskList: {
        noop,
        stamp,
        steady: async (payload) => { stamp(payload); await sleep(5); },
        fail: (_, helpers) => { if (helpers.job.attempts === 1) throw new Error("on purpose"); },
      },
      preset: {
        worker: {
          connectionString,
          logger,
          concurrentJobs: concurrency,
          maxPoolSize: concurrency + 2,
          ...(quick ? {} : fast),
        },
      },
    });
  },
});
