/**
 * Checks that the store contains every acked step: compares the records of writers with the rows and with the answers
 * to a reader.
 */
import type { AnabranchClient } from '../../../src/client/index.ts';
import type { TestDatabase } from '../../support/database.ts';
import type { SeenStep } from '../history/history.ts';
import { collectStored, type StoredTrajectory } from '../history/stored.ts';
import type { Ledger } from './load.ts';

export interface Verdict {
  readonly acked: number;
  readonly stored: number;
  /** Acked and missing, or stored with other content. */
  readonly lost: number;
  /** Other violations: gaps, duplicates, steps that nobody sent, a reader that gets other data than the rows. */
  readonly faults: readonly string[];
}

export async function checkAcked(
  client: AnabranchClient,
  database: TestDatabase,
  ledgers: readonly Ledger[],
): Promise<Verdict> {
  const stored = await collectStored(client, database);
  let [acked, held, lost] = [0, 0, 0];
  const faults: string[] = [];
  for (const ledger of ledgers) {
    const found = stored.get(ledger.trajectoryId);
    acked += Number(ledger.ackedEnd);
    held += found?.rows.length ?? 0;
    lost += lostOf(ledger, found?.rows ?? []);
    if (found !== undefined) faults.push(...faultsOf(ledger, found));
  }
  return { acked, stored: held, lost, faults };
}

function lostOf({ ackedEnd, sent }: Ledger, rows: readonly SeenStep[]): number {
  const contents = new Map(rows.map(({ number, content }) => [number, content]));
  return sent.filter(({ number, content }) => number < ackedEnd && contents.get(number) !== content).length;
}

function faultsOf({ trajectoryId, sent }: Ledger, { rows, read, end }: StoredTrajectory): string[] {
  const faults: string[] = [];
  rows.forEach(({ number, content }, i) => {
    if (number !== BigInt(i)) faults.push(`${trajectoryId}: row ${i} is step ${number}`);
    if (sent[Number(number)]?.content !== content)
      faults.push(`${trajectoryId}: step ${number} was never sent with this content`);
  });
  if (end !== BigInt(rows.length)) faults.push(`${trajectoryId}: ends at ${end}, and has ${rows.length} rows`);
  const same = read.length === rows.length && read.every(({ content }, i) => content === rows[i]?.content);
  if (!same) faults.push(`${trajectoryId}: a reader gets ${read.length} steps, not the ${rows.length} rows`);
  return faults;
}
