// What a contender reads and writes: a JSON array per line, [verb, ...arguments], and for each a line
// {"ok": …} or {"error": …} when it is done.
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";

export async function serve(verbs) {
  const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
  say({ ok: "ready" });
  for await (const line of createInterface({ input: process.stdin })) {
    const [verb, ...args] = JSON.parse(line);
    try {
      say({ ok: (await verbs[verb](...args)) ?? null });
    } catch (error) {
      say({ error: String(error?.stack ?? error) });
    }
  }
  process.exit(0);
}

// Seconds on a clock that all processes of this machine share.
export const now = () => Number(process.hrtime.bigint()) / 1e9;

// What every contender's handlers do: count, and record every 1,000th job; or record how long it took until
// the handler started.
let count = 0;
export const noop = () => {
  if (++count % 1000 === 0) appendFileSync(process.env.BENCH_TRAIL, `${now()} 1000\n`);
};
export const leave = (value) => appendFileSync(process.env.BENCH_TRAIL, `${value}\n`);
export const stamp = (payload) => leave(now() - payload.t);

// n calls by so many loops at once.
export async function calls(n, loops, call) {
  let next = 0;
  await Promise.all(Array.from({ length: loops }, async () => {
    while (next < n) await call(next++);
  }));
}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const payload = (n) => ({ n, to: "ada@example.org" });

// A job every gap_ms or so, each with the time just before its call.
export async function latency(n, gap_ms, call) {
  for (let i = 0; i < n; i++) {
    await sleep(gap_ms * (0.5 + Math.random()));
    await call({ t: now() });
  }
}
