// Run buttons of the guides: a block's SQL runs after that of the blocks above it.
import { openDatabase } from "./database.js";
import { answer } from "./parts.js";

const done = new Set();
let last = Promise.resolve();

/** Runs the blocks of a page up to one of them; each only once, but that one every time. */
export function runUpTo(blocks, wanted) {
  last = last.then(() => run(blocks, wanted));
  return last;
}

async function run(blocks, wanted) {
  const database = await openDatabase();
  for (const block of blocks.slice(0, blocks.indexOf(wanted) + 1)) {
    if (done.has(block) && block !== wanted) continue;
    const outcome = await database.run(block.sql);
    done.add(block);
    block.show(answer(outcome), Boolean(outcome.error));
  }
}
