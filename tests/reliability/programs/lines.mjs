// What lines.py says, for programs in JavaScript.
import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

const runs = openSync(process.env.REPORT_RUNS, "a");
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const write = (what, fields) =>
  writeSync(runs, JSON.stringify({ what, t: now(), ...fields, process: process.pid }) + "\n");

export const up = () => write("process", { phase: "up" });

export async function run(payload, job, attempt) {
  const fields = { op: payload.op, job, attempt };
  write("start", fields);
  await new Promise((done) => setTimeout(done, payload.ms));
  write("end", fields);
}

const answer = (fields) => process.stdout.write(JSON.stringify(fields) + "\n");

// add(client, call, payload) adds a job on this client of a pool of pg's, which is in a transaction.
export async function produce(pool, add) {
  pool.on("error", (error) => console.error(error));
  answer({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    const { op, key, ms, end } = call;
    let client, broken;
    try {
      client = await pool.connect();
      client.on("error", (error) => { broken = error; });
      await client.query("begin");
      await add(client, call, { op, key, ms });
      if (end === "hang") {
        answer({ op, phase: "added" });
        await new Promise(() => setInterval(() => {}, 1e6));
      }
      await client.query(end === "commit" ? "commit" : "rollback");
      answer({ op, phase: end === "commit" ? "ok" : "rolled back" });
    } catch (error) {
      broken = error;
      answer({ op, phase: "unknown", error: String(error) });
    } finally {
      client?.removeAllListeners("error");
      client?.on("error", () => {});
      client?.release(broken ?? false);
    }
  }
  process.exit(0);
}
