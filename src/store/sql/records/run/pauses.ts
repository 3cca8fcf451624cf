import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { Pause } from '../../../../domain/pauses.ts';

/**
 * Encodes pauses as JSON text: a list of pairs of times. A pause that has not ended has one time. No pauses are an
 * empty text.
 */
export function bindPauses(pauses: readonly Pause[]): string {
  if (pauses.length === 0) return '';
  const pairs = pauses.map(({ start, end }) => (end === undefined ? [start] : [start, end]));
  return JSON.stringify(pairs.map((times) => times.map((time) => formatInstant(time, 6))));
}

export function readPauses(text: string): readonly Pause[] {
  if (text === '') return [];
  const pairs = JSON.parse(text) as readonly (readonly [string, string?])[];
  return pairs.map(([start, end]) => ({
    start: parseInstant(start),
    end: end === undefined ? undefined : parseInstant(end),
  }));
}
