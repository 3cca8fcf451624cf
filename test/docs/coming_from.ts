/**
 * The contents of docs/coming-from.md, for the tests that compare it with the contract and with the behaviour of the
 * service.
 */
import { readFileSync } from 'node:fs';

export const comingFrom = readFileSync(new URL('../../docs/coming-from.md', import.meta.url), 'utf8');

/**
 * For rows that no test title cites: the rules and guarantees that imply them, by their ids, or
 * the test file that shows them.
 */
export const ROWS_SHOWN_BY: Readonly<Record<string, readonly string[]>> = {
  'F-04': ['D3', 'W4'],
  'F-10': ['W10'],
  'F-21': ['test/store/open_sqlite.test.ts'],
  'F-22': ['RD4'],
  'F-25': ['W3', 'W7'],
  'F-26': ['M1', 'M3', 'RD4', 'RD5'],
  'F-27': ['A1', 'A2'],
  'F-28': ['test/store/run_number.test.ts'],
  'F-33': ['O2', 'RD4'],
  'F-34': ['FM7'],
  'F-35': ['FM7', 'W10'],
  'F-39': ['S1'],
  'F-50': ['B5', 'O2'],
  'F-51': ['test/wire/rpcs.test.ts'],
  'C-01': ['test/wire/rpcs.test.ts'],
  'C-03': ['test/wire/rpcs.test.ts'],
  'C-05': ['test/store/open.test.ts'],
  'C-15': ['W12'],
  'C-20': ['W12'],
  'C-21': ['W4', 'W12'],
  'C-22': ['F1', 'F2', 'Q2'],
  'C-24': ['M1', 'M3', 'RD4', 'RD5'],
  'C-48': ['test/store/environment.test.ts'],
  'C-49': ['Q6', 'RD6'],
  'C-56': ['S3'],
  'C-58': ['L4', 'M2', 'M3'],
  'S-01': ['B1', 'O2'],
  'S-02': ['O1', 'W2'],
  'S-05': ['D1'],
  'S-06': ['M4', 'O2'],
  'S-08': ['O1'],
  'S-11': ['O2', 'RD1'],
  'S-12': ['test/wire/rpcs.test.ts'],
  'S-16': ['test/store/open.test.ts'],
  'S-17': ['FM3', 'W9'],
  'S-18': ['B1', 'RD4', 'S4'],
  'S-19': ['B5'],
  'S-20': ['B1', 'O1', 'W3'],
  'S-30': ['test/store/experiment.test.ts'],
  'S-31': ['D3', 'M4'],
  'S-32': ['M4', 'O2'],
  'K-F1': ['O1'],
  'K-F2': ['test/store/on_store.ts'],
  'K-F3': ['O1', 'RD3'],
  'K-F5': ['F1', 'W1'],
  'K-F6': ['W9'],
  'K-F7': ['W12'],
  'K-F8': ['I1', 'W6'],
  'K-F9': ['S1', 'S3'],
  'K-C2': ['M4'],
  'K-C7': ['FM4', 'S1'],
  'K-C11': ['test/store/on_store.ts'],
  'K-S2': ['B1', 'B2'],
  'K-S5': ['W11'],
  'K-S7': ['B1', 'W7'],
};

/** The ids of rows that a text cites, with ranges expanded: `C-12, F-41 to F-45`. */
export function citedRows(text: string): string[] {
  const cited = text.matchAll(/(?<![\w-])(K-[FCS]|[FCS]-)(\d+)(?: to \1(\d+))?(?!\w)/gu);
  return [...cited].flatMap(([, prefix = '', first = '', last = first]) =>
    Array.from({ length: Number(last) - Number(first) + 1 }, (_, i) => {
      const number = `${Number(first) + i}`;
      return prefix + number.padStart(first.length, '0');
    }),
  );
}
