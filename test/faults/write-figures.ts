/**
 * Puts the figures of a full run into docs/guarantees.md:
 *
 *     FAULTS_REPORT=/tmp/figures npm run test:faults && node test/faults/write-figures.ts /tmp/figures
 */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import type { Report } from './figures.ts';

const DOCUMENT = path.resolve(import.meta.dirname, '../../docs/guarantees.md');
const TABLE = /(?<=<!-- figures -->\n)[\s\S]*(?=<!-- end of figures -->)/u;

async function main(folder: string | undefined): Promise<void> {
  if (folder === undefined) throw new Error('Name the folder that FAULTS_REPORT named during the run');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.json'));
  const reports = await Promise.all(
    names.map(async (name) => JSON.parse(await readFile(path.join(folder, name), 'utf8')) as Report),
  );
  if (reports.length === 0) throw new Error(`There are no figures in ${folder}`);
  const document = await readFile(DOCUMENT, 'utf8');
  if (!TABLE.test(document)) throw new Error('docs/guarantees.md has no place for figures');
  await writeFile(DOCUMENT, document.replace(TABLE, tableOf(reports)));
}

function tableOf(reports: readonly Report[]): string {
  const sorted = reports.toSorted((a, b) => `${a.test} ${a.proof}`.localeCompare(`${b.test} ${b.proof}`, 'en'));
  const machine = `Taken on ${new Date().toISOString().slice(0, 10)} on ${os.availableParallelism()} cores, Node ${process.versions.node}.`;
  return `${[machine, '', '| test | proof | figures |', '|---|---|---|', ...sorted.map(rowOf)].join('\n')}\n`;
}

/** Seeds are for repeating a run, not for readers. */
function rowOf({ test, proof, figures }: Report): string {
  const text = Object.entries(figures)
    .filter(([name]) => name !== 'seed')
    .map(([name, value]) => `${name}: ${typeof value === 'number' ? value.toLocaleString('en') : value}`)
    .join('; ');
  return `| \`${test}\` | ${proof} | ${text.replaceAll('|', '\\|')} |`;
}

await main(process.argv[2]);
