import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { expect } from 'vitest';

export type Figures = Readonly<Record<string, number | string>>;

/** The result of a proof in the folder that FAULTS_REPORT names: write-figures.ts puts it into docs/guarantees.md. */
export interface Report {
  /** The test file of the proof, below the repository. */
  readonly test: string;
  readonly proof: string;
  readonly figures: Figures;
}

const ROOT = path.resolve(import.meta.dirname, '../..');

/**
 * Reports the result of a proof: a line for people, and a JSON file of its own in the folder that FAULTS_REPORT names,
 * if it is set.
 */
export async function reportFigures(proof: string, figures: Figures): Promise<void> {
  process.stdout.write(`${proof}: ${textOf(figures)}\n`);
  const folder = process.env.FAULTS_REPORT;
  if (folder === undefined || folder === '') return;
  const report: Report = { test: path.relative(ROOT, expect.getState().testPath ?? ''), proof, figures };
  await mkdir(folder, { recursive: true });
  const file = path.join(folder, `${proof.replaceAll(/[^a-z0-9]+/giu, '-').toLowerCase()}.json`);
  await writeFile(file, `${JSON.stringify(report, null, 2)}\n`);
}

export function textOf(figures: Figures): string {
  return Object.entries(figures)
    .map(([name, value]) => `${name} ${value}`)
    .join(', ');
}
