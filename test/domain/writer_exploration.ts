import { type Bounds, nameOf, type State, start, successors } from './writer_model.ts';

const STUCK = 'a writer is stuck';
export const NOT_ITS_OWN = 'a writer believes a step to be its own that does not exist';
const MISPLACED = 'a step stands at another number than its writer gave it';
export const STALE = 'an older epoch wrote after a newer one';
export const ALL_FENCED = 'the writers fenced themselves for good';

interface Exploration {
  readonly states: number;
  /** States in which both writers have finished. */
  readonly ends: number;
  readonly violations: ReadonlySet<string>;
}

/** Every reachable state, until the given violation is found. */
export function explore(bounds: Bounds, looked?: string): Exploration {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0; // refusals are thrown by the hundred thousand, and nobody reads their stacks
  try {
    return exploreAll(bounds, looked);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

function exploreAll(bounds: Bounds, looked: string | undefined): Exploration {
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
