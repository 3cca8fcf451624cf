/**
 * A hint: names a trajectory (`t`) or a run (`r`) that changed, by its row key, or metric series of a run that were
 * written (`s`). It has no commas and colons, so that hints can be joined, and can be looked up without parsing it.
 */
export type Hint = `t${string}` | `r${string}` | `s${string}`;

export function trajectoryHint(key: bigint): Hint {
  return `t${key.toString(36)}`;
}

export function runHint(key: bigint): Hint {
  return `r${key.toString(36)}`;
}

/** Returns what a hint is about: the hint itself, but for all series of a run the same text. */
export function subjectOf(hint: Hint): string {
  return hint.startsWith('s') ? hint.slice(0, hint.indexOf('~')) : hint;
}

/** Returns the subject of hints of the metric series of a run. */
export function seriesSubject(runId: string): string {
  return `s${runId}`;
}

/** Returns the row key that a hint of a trajectory or run names. */
export function keyOfHint(hint: Hint): bigint | undefined {
  return parseInteger(hint.slice(1));
}

/** Points of metric series of a run that were written. */
export interface SeriesChange {
  readonly runId: string;
  /** The lowest step that was written, by `seriesHash`. */
  readonly lowest: ReadonlyMap<number, bigint>;
  /** The lowest step that was written in a series that `lowest` does not list. Undefined: `lowest` lists all series. */
  readonly ofOthers: bigint | undefined;
}

/**
 * Returns a short mark of a series of a run. Two series can have the same mark. A hint for one of them then
 * also names the other one, which is read without need.
 */
export function seriesHash({ stageId, name }: { readonly stageId: string | undefined; readonly name: string }): number {
  // FNV-1a.
  let hash = 0x81_1c_9d_c5;
  const text = `${stageId ?? ''} ${name}`;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01_00_01_93);
  return hash >>> 0;
}

/**
 * More series of one hint are summarised as one, because a notification of Postgres has less than 8,000 bytes. A series
 * takes at most 22.
 */
const MOST_LISTED = 256;

export function seriesHint({ runId, lowest, ofOthers }: SeriesChange): Hint {
  const listed = lowest.size > MOST_LISTED ? [] : [...lowest];
  const steps = [...(ofOthers === undefined ? [] : [ofOthers]), ...(lowest.size > MOST_LISTED ? lowest.values() : [])];
  const others = steps.length === 0 ? '' : steps.reduce((least, step) => (step < least ? step : least)).toString(36);
  const marks = listed.map(([mark, step]) => `~${mark.toString(36)}.${step.toString(36)}`);
  return `s${runId}~${others}${marks.join('')}`;
}

/** Parses `seriesHint`. Returns undefined for other text, which means that anything may have changed. */
export function parseSeriesHint(hint: Hint): SeriesChange | undefined {
  const [subject = '', others = '', ...listed] = hint.split('~');
  const runId = subject.slice(1);
  const ofOthers = others === '' ? undefined : parseInteger(others);
  if (others !== '' && ofOthers === undefined) return undefined;
  const lowest = new Map<number, bigint>();
  for (const each of listed) {
    const [mark, step] = each.split('.').map(parseInteger);
    if (mark === undefined || step === undefined) return undefined;
    lowest.set(Number(mark), step);
  }
  return { runId, lowest, ofOthers };
}

/** Parses an integer of 64 bits in base 36. */
function parseInteger(text: string): bigint | undefined {
  const [, sign, digits] = /^(-?)([0-9a-z]{1,13})$/.exec(text) ?? [];
  if (digits === undefined) return undefined;
  let value = 0n;
  for (const digit of digits) value = value * 36n + BigInt(Number.parseInt(digit, 36));
  return sign === '-' ? -value : value;
}
