import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';

export type Figures = Readonly<Record<string, number | string>>;

/** What a proof came to: a line for people, and a JSON file of its own in the folder that FAULTS_REPORT names, if it does. */
export async function reportFigures(proof: string, figures: Figures): Promise<void> {
  const text = Object.entries(figures).map(([name, value]) => `${name} ${value}`);
  process.stdout.write(`${proof}: ${text.join(', ')}\n`);
  const folder = process.env.FAULTS_REPORT;
  if (folder === undefined || folder === '') return;
  await mkdir(folder, { recursive: true });
  const file = path.join(folder, `${proof.replaceAll(/[^a-z0-9]+/giu, '-').toLowerCase()}.json`);
  await writeFile(file, `${JSON.stringify({ proof, figures }, null, 2)}\n`);
}
