import { describe, expect, it } from 'vitest';
import { type Bounds, nameOf, type Omission, type State, start, successors } from './writer_model.ts';

const STUCK = 'a writer is stuck';
const NOT_ITS_OWN = 'a writer believes a step to be its own that is not there';
const MISPLACED = 'a step stands at another number than its writer gave it';
const STALE = 'an older epoch wrote after a newer one';
const ALL_FENCED = 'the writers fenced themselves for good';

interface Exploration {
  readonly states: number;
  /** States in which both writers have finished. */
  readonly ends: number;
  readonly violations: ReadonlySet<string>;
}

/** Every reachable state, until the given violation is found. */
function explore(bounds: Bounds, looked?: string): Exploration {
  const first = start(bounds);
  const seen = new Set([nameOf(first)]);
  const todo = [first];
  const violations = new Set<string>();
  let ends = 0;
  for (let state = todo.pop(); state !== undefined; state = todo.pop()) {
    const ended = state.writers.every(({ phase }) => phase === 'done' || phase === 'failed');
    if (ended) ends += 1;
    const next = [...successors(state, bounds)];
    const violation = next.length === 0 && !ended ? STUCK : violationOf(state, ended);
    if (violation !== undefined) violations.add(violation);
    if (looked !== undefined && violation === looked) break;
    for (const each of next) {
      const name = nameOf(each);
      if (seen.has(name)) continue;
      seen.add(name);
      todo.push(each);
    }
  }
  return { states: seen.size, ends, violations };
}

function violationOf(state: State, ended: boolean): string | undefined {
  for (const [who, writer] of state.writers.entries()) {
    if (writer.uid === state.uid)
      for (let n = writer.base; n !== -1 && n < writer.acked; n += 1)
        if (state.steps[n]?.word !== `${who}:${n}`) return NOT_ITS_OWN;
  }
  for (const [n, { word, epoch }] of state.steps.entries()) {
    if (!word.endsWith(`:${n}`)) return MISPLACED;
    if (epoch < (state.steps[n - 1]?.epoch ?? 0)) return STALE;
  }
  const reasons = state.writers.map(({ failure }) => failure);
  if (ended && reasons.every((reason) => reason !== '' && reason !== 'TRAJECTORY_NOT_FOUND')) return ALL_FENCED;
  return undefined;
}

describe('two writers, cuts, deletions and late frames, in every order', () => {
  it.each([
    { steps: [1, 1] as const, failures: 3 },
    { steps: [2, 1] as const, failures: 2 },
  ])(
    'W1, W2, W12, F1: an acked step is stored and belongs to its writer, and never are both writers fenced ($steps steps, $failures failures)',
    (bounds) => {
      const { states, ends, violations } = explore({ ...bounds, omit: new Set() });
      expect([...violations]).toEqual([]);
      expect(states).toBeGreaterThan(50_000);
      expect(ends).toBeGreaterThan(1_000);
    },
    180_000,
  );

  const OMISSIONS: readonly [string, readonly Omission[], string][] = [
    ['the epoch in the take-over (W1)', ['take_over_epoch'], ALL_FENCED],
    ['the uid (B3)', ['uid'], ALL_FENCED],
    ['the uid and the replay below the end (W12)', ['uid', 'replay_below_end'], NOT_ITS_OWN],
    ['the epoch at every write (F1)', ['epoch_check'], STALE],
  ];
  it.each(OMISSIONS)('the search finds a violation without %s', (_, omit, violation) => {
    const { violations } = explore({ steps: [2, 1], failures: 2, omit: new Set(omit) }, violation);
    expect([...violations]).toContain(violation);
  });
});
