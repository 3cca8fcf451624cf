/** Spans of time in rows, for stages and for the attempts of workers. */

export interface Span {
  readonly id: string;
  readonly row: string;
  /** Milliseconds. */
  readonly start: number;
  /** Undefined: still open. */
  readonly end: number | undefined;
  readonly text: string;
  readonly status: number;
  /** Why it ended. Empty if no reason is known. */
  readonly message: string;
}

export interface TimelineRow {
  readonly name: string;
  /** Spans in order of their start. Those of one line do not overlap. */
  readonly lines: readonly (readonly Span[])[];
}

/**
 * Puts spans into rows by name, and into as many lines of a row as overlap. Spans that end before they start are empty.
 */
export function timelineRows(spans: readonly Span[], now: number): TimelineRow[] {
  const rows = Map.groupBy(
    spans.toSorted((a, b) => a.start - b.start),
    ({ row }) => row,
  );
  return [...rows].map(([name, all]) => {
    const lines: Span[][] = [];
    for (const span of all) {
      const free = lines.find((line) => endOf(line.at(-1), now) <= span.start);
      if (free === undefined) lines.push([span]);
      else free.push(span);
    }
    return { name, lines };
  });
}

export function endOf(span: Span | undefined, now: number): number {
  return span === undefined ? Number.NEGATIVE_INFINITY : Math.max(span.start, span.end ?? now);
}

/** Returns the first start and the last end, at least a millisecond apart. */
export function extent(spans: readonly Span[], now: number): readonly [number, number] {
  let [first, last] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const span of spans) {
    first = Math.min(first, span.start);
    last = Math.max(last, endOf(span, now));
  }
  return first < last ? [first, last] : [Math.min(first, now - 1), Math.max(last, now)];
}
