import { trajectoryHint } from '../../../../domain/change.ts';
import type { AppendBatch, AppendOutcome, CreatingBatch } from '../../../contract/append.ts';
import { write } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import type { AppendsEngine } from '../engine.ts';
import { type EncodedState, encodeStates } from '../states/bytes.ts';
import { createMissing, encodeInline } from '../trajectory/creation.ts';
import { appendIn } from './append.ts';

export async function appendToNew(
  engine: AppendsEngine,
  batches: readonly CreatingBatch[],
): Promise<(AppendOutcome | undefined)[]> {
  const [inline, roots]: [EncodedState[][], EncodedState[][]] = [[], []];
  for (const { create, states } of batches) {
    inline.push(await encodeStates(states));
    roots.push(await encodeInline(create.making));
  }
  const { changed, places } = await againWhenRaced(() =>
    write(engine, async (tx) => {
      await engine.locks.waitBriefly(tx.db);
      const places = new Map<number, AppendBatch>();
      for (const [i, { create, ...batch }] of batches.entries()) {
        const made = await createMissing(tx.as(batch.caller), create, roots[i]!, { writer: undefined });
        if (made !== undefined) places.set(i, { ...batch, ref: made.ref });
      }
      if (places.size === 0) return { changed: [], places: new Map<number, AppendOutcome>() };
      const states = [...places.keys()].map((i) => inline[i]!);
      const { outcomes, changed } = await appendIn(tx, [...places.values()], { inline: states, wait: 'never' });
      for (const outcome of outcomes) if (outcome.kind === 'refused') throw outcome.error;
      return { changed, places: new Map([...places.keys()].map((place, i) => [place, outcomes[i]!])) };
    }),
  );
  engine.changes.announce(changed.map(trajectoryHint));
  return batches.map((_, i) => places.get(i));
}
