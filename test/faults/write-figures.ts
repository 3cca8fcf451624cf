/**
 * Puts the figures of a run into docs/guarantees.md; tests that did not run keep theirs, as long as they are there:
 *
 *     FAULTS_REPORT=/tmp/figures npm run test:faults && node test/faults/write-figures.ts /tmp/figures
 */
import { existsSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import type { Report } from './figures.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const DOCUMENT = path.join(ROOT, 'docs/guarantees.md');
const TABLE = /(?<=<!-- figures -->\n)[\s\S]*(?=<!-- end of figures -->)/u;

async function main(folder: string | undefined): Promise<void> {
  if (folder === undefined) throw new Error('Name the folder that FAULTS_REPORT named during the run');
  const names = (await readdir(folder)).filter((name) => name.endsWith('.json'));
  const reports = await Promise.all(
    names.map(async (name) => JSON.parse(await readFile(path.join(folder, name), 'utf8')) as Report),
  );
  if (reports.length === 0) throw new Error(`There are no figures in ${folder}`);
  const document = await readFile(DOCUMENT, 'utf8');
  const [table] = TABLE.exec(document) ?? [];
  if (table === undefined) throw new Error('docs/guarantees.md has no place for figures');
  const fresh = new Set(reports.map(({ test }) => test));
  const kept = [...table.matchAll(/^\| `(.+?)` .+$/gmu)].filter(
    ([, test = '']) => !fresh.has(test) && existsSync(path.join(ROOT, test)),
  );
  const rows = [...kept.map(([row]) => row), ...reports.map(rowOf)].sort((a, b) => a.localeCompare(b, 'en'));
  await writeFile(
    DOCUMENT,
    document.replace(TABLE, () => tableOf(rows)),
  );
}

function tableOf(rows: readonly string[]): string {
  const machine = `Taken on ${new Date().toISOString().slice(0, 10)} on ${os.availableParallelism()} cores, Node ${process.versions.node}.`;
  return `${[machine, '', '| test | proof | figures |', '|---|---|---|', ...rows].join('\n')}\n`;
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
