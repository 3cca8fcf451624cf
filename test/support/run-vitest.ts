/**
 * `npm test`: runs vitest to the end and prints one last line, `N passed, N failed`, for people and scripts. The exit
 * code is 0 only if that of vitest is 0 and its report says success: a run that crashed, was killed, or did not write
 * its report fails. Arguments are passed on: `npm test -- test/store -t W3`.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';

/** Node's cache of compiled modules, kept between runs. Node checks each entry against its source. */
const COMPILED = path.join(import.meta.dirname, '../../node_modules/.cache/node-compile');

interface Report {
  readonly success: boolean;
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly testResults: readonly {
    readonly status: string;
    readonly assertionResults: readonly { status: string }[];
  }[];
}

async function main(args: readonly string[]): Promise<number> {
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-vitest-'));
  try {
    const file = path.join(dir, 'report.json');
    const code = await vitest(['run', '--reporter=default', '--reporter=json', `--outputFile.json=${file}`, ...args]);
    const report = await readReport(file);
    const failed = failures(report);
    const green = code === 0 && report?.success === true && failed === 0;
    console.log(`\n${report?.numPassedTests ?? 0} passed, ${green ? 0 : Math.max(1, failed)} failed`);
    return green ? 0 : code || 1;
  } finally {
    await rm(dir, { recursive: true, force: true });
  }
}

async function vitest(args: readonly string[]): Promise<number> {
  const entry = path.join(path.dirname(createRequire(import.meta.url).resolve('vitest/package.json')), 'vitest.mjs');
  // Processes and threads of tests load compiled modules: without the cache, each of them strips the types from every
  // file again.
  const env = { ...process.env, NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE ?? COMPILED };
  const child = spawn(process.execPath, [entry, ...args], { stdio: 'inherit', env });
  // An interrupt from the keyboard reaches vitest too; this process waits until vitest has stopped its servers.
  process.on('SIGINT', () => undefined);
  process.on('SIGTERM', () => child.kill('SIGTERM'));
  const [code] = (await once(child, 'exit')) as [number | null];
  return code ?? 1;
}

async function readReport(file: string): Promise<Report | undefined> {
  try {
    return JSON.parse(await readFile(file, 'utf8')) as Report;
  } catch {
    console.error('vitest wrote no report: the run counts as failed.');
    return undefined;
  }
}

/** A file that fails before its first test (an import, a setup) has no failing test to count: it counts as one. */
function failures(report: Report | undefined): number {
  if (!report) return 1;
  const broken = report.testResults.filter(
    (file) => file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed'),
  );
  return report.numFailedTests + broken.length;
}

process.exitCode = await main(process.argv.slice(2));
