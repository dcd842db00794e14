// pg-boss. For throughput large batches, and the next one at once while they are full; for latency
// LISTEN/NOTIFY, as its types document it.
import { PgBoss } from "pg-boss";
import { calls, latency, leave, noop, now, payload, serve, sleep, stamp } from "./repl.mjs";

let boss;
let loops = 1;

async function connect(connections, options = {}) {
  loops = connections;
  boss = new PgBoss({ connectionString: process.env.DATABASE_URL, max: connections, ...options });
  boss.on("error", (error) => console.error(error));
  await boss.start();
}

serve({
  async setup() {
    await connect(4);
    await boss.createQueue("noop");
    await boss.createQueue("unique", { policy: "short" });
    await boss.createQueue("fail", { retryLimit: 3, retryDelay: 0 });
    await boss.createQueue("stamp", { notify: true });
    await boss.createQueue("steady", { notify: true });
    await boss.createQueue("member", { notify: true });
    await boss.createQueue("callback", { notify: true });
    await boss.stop();
  },
  connect: (connections) => connect(connections, { supervise: false, schedule: false }),
  add: (n) => calls(n, loops, (i) => boss.send("noop", payload(i))),
  add_unique: (n, different) =>
    calls(n, 1, (i) => boss.send("unique", payload(i), { singletonKey: `k${i % different}` })),
  bulk: (n) =>
    calls(Math.ceil(n / 1000), 1, (batch) => {
      const length = Math.min(1000, n - batch * 1000);
      return boss.insert("noop", Array.from({ length }, (_, i) => ({ data: payload(i) })));
    }),
  latency: (n, gap) => latency(n, gap, (moment) => boss.send("stamp", moment)),
  // Each flow: so many jobs, and one that waits for all of them. `loose`: as many jobs that wait for none.
  flows: (n, members) =>
    calls(n, 1, () =>
      boss.flow([
        ...Array.from({ length: members }, (_, i) => ({ ref: `${i}`, name: "member", data: payload(i) })),
        { ref: "callback", name: "callback", dependsOn: Array.from({ length: members }, (_, i) => `${i}`) },
      ])),
  loose: (n, members) =>
    calls(n, 1, async () => {
      await boss.insert("member", Array.from({ length: members }, (_, i) => ({ data: payload(i) })));
      await boss.send("callback");
    }),
  async work_flows() {
    // The shortest intervals that it allows: between two looks at parents that have ended, which notify no
    // worker, and between two looks for jobs.
    await connect(10, { useListenNotify: true, flowIntervalSeconds: 1 });
    const often = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };
    let last = 0;
    await boss.work("member", { ...often, batchSize: 500, localConcurrency: 2, burstWhenBatchFull: true },
      async () => { last = now(); });
    await boss.work("callback", { ...often, batchSize: 1 }, async () => leave(now() - last));
  },
  async work(concurrency, quick) {
    await connect(10, { useListenNotify: true });
    const options = quick
      ? { batchSize: 1, pollingIntervalSeconds: 0.5 }
      : {
          batchSize: 500,
          localConcurrency: 2,
          burstWhenBatchFull: true,
          pollingIntervalSeconds: 0.5,
          priority: false,
          orderByCreatedOn: false,
        };
    const groups = process.env.BENCH_LIMIT ? { groupConcurrency: Number(process.env.BENCH_LIMIT) } : {};
    await boss.work("noop", { ...options, ...groups }, async (jobs) => jobs.forEach(noop));
    await boss.work("stamp", options, async (jobs) => jobs.forEach((job) => stamp(job.data)));
    // In two batches: with 24 loops of one job each, every notification wakes all of them.
    const halves = { batchSize: concurrency / 2, localConcurrency: 2, pollingIntervalSeconds: 0.5 };
    await boss.work("steady", halves, (jobs) =>
      Promise.all(jobs.map(async (job) => { stamp(job.data); await sleep(5); })));
    await boss.work("fail", { ...options, includeMetadata: true, batchSize: 1 }, async ([job]) => {
      if (job.retryCount === 0) throw new Error("on purpose");
    });
  },
});
