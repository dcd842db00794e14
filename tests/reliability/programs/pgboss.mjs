// pg-boss: a queue for each kind of job, LISTEN/NOTIFY, the shortest interval of polling. Its heartbeat is
// off by default; here it is on, at the shortest interval that it takes, and so is that of supervision.
import { PgBoss } from "pg-boss";
import pg from "pg";
import { produce, run, up } from "./lines.mjs";

const connectionString = process.env.DATABASE_URL;
const WORKERS = { plain: 6, once: 2, unique: 1, sequence: 3 };
const heartbeatSeconds = 10;
// Also while it listens: a job that is retried notifies no worker.
const often = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
const QUEUES = {
  plain: { retryLimit: 25, heartbeatSeconds, notify: true },
  once: { retryLimit: 0, heartbeatSeconds, notify: true },
  unique: { policy: "short", retryLimit: 25, heartbeatSeconds, notify: true },
  sequence: { policy: "key_strict_fifo", retryLimit: 25, heartbeatSeconds, notify: true },
};

async function started(options = {}) {
  const boss = new PgBoss({ connectionString, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return boss;
}

const verbs = {
  async setup() {
    const boss = await started();
    for (const [name, options] of Object.entries(QUEUES)) await boss.createQueue(name, options);
    await boss.stop();
  },
  async produce() {
    const boss = await started({ supervise: false, schedule: false, max: 2 });
    await produce(new pg.Pool({ connectionString, max: 2 }), (client, { kind, key, delay }, payload) => {
      const db = { executeSql: (text, values) => client.query(text, values) };
      return boss.send(kind, payload, { db, ...(key ? { singletonKey: key } : {}),
        ...(delay ? { startAfter: delay } : {}) });
    });
  },
  async work() {
    const boss = await started({ useListenNotify: true, superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 });
    for (const [name, localConcurrency] of Object.entries(WORKERS)) {
      await boss.work(name, { batchSize: 1, localConcurrency, includeMetadata: true, ...often },
        async ([job]) => run(job.data, job.id, job.retryCount));
    }
    up();
    const ended = new Promise((done) => boss.on("stopped", done));
    process.once("SIGTERM", () => boss.stop({ graceful: true }));
    await ended;
  },
};
await verbs[process.argv[2]]();
if (process.argv[2] !== "produce") process.exit(0);
