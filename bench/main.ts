import process from 'node:process';
import { Command, InvalidArgumentError, Option } from 'commander';
import type { Bench, Engine, Result, Run } from './bench.ts';
import { BENCHES } from './catalogue.ts';
import { cpuSeconds, machineCpuSeconds } from './processes.ts';
import { jsonLine, machine, ratioText, table } from './report.ts';
import { BenchResources } from './resources.ts';

interface Options {
  readonly json?: boolean;
  readonly list?: boolean;
  readonly rounds: number;
  readonly seconds: number;
  readonly warmup: number;
  readonly engine?: Engine;
  readonly profile?: string;
  readonly growthSteps: number;
  readonly archiveSteps: number;
  readonly metricPoints: number;
  readonly pageScale: number;
}

const GROUPS: readonly string[] = ['storage', 'python', 'page'];

const command = new Command('bench')
  .description(
    'Measure the speed of the service, and compare it. These are figures, not tests: the bench fails only if it cannot measure.',
  )
  .argument('[name...]', 'benches or results to measure (default: all but growth, peers, python and page)')
  .option('--list', 'list all benches')
  .option('--json', 'print one line of JSON per result instead of a table')
  .option('--rounds <n>', 'rounds in which value and ceiling alternate', positive, 5)
  .option('--seconds <n>', 'seconds of one measurement', positive, 3)
  .option('--warmup <n>', 'seconds of warm-up before each', positive, 3)
  .addOption(new Option('--engine <name>', 'measure only this engine').choices(['sqlite', 'postgres']))
  .option('--profile <folder>', 'write CPU profiles of the servers to this folder (slows them down)')
  .option('--growth-steps <n>', 'steps stored before `growth` measures', positive, 10_000_000)
  .option('--archive-steps <n>', 'steps that are exported, imported, backed up or pruned', positive, 1_000_000)
  .option('--metric-points <n>', 'points of each series that `metrics-read` reads', positive, 1_000_000)
  .option('--page-scale <n>', 'size of the data of the benches of the page, as a part of 1', positive, 1)
  .action(main);
await command.parseAsync();

async function main(names: readonly string[], options: Options): Promise<void> {
  const chosen = choose(names);
  if (options.list === true) return list();
  const resources = await BenchResources.make(process.env.BENCH_DATABASE_URL, options.profile);
  const results: Result[] = [];
  try {
    if (options.json !== true) process.stdout.write(`${machine()}\n\n`);
    for (const bench of chosen) {
      for (const engine of bench.engines) {
        if (options.engine !== undefined && options.engine !== engine) continue;
        results.push(...(await measure(bench, engine, options, resources)));
      }
    }
  } finally {
    await resources.close();
  }
  if (options.json !== true) process.stdout.write(`\n${table(results)}`);
}

function choose(names: readonly string[]): readonly Bench[] {
  if (names.length === 0) return BENCHES.filter((bench) => bench.onlyWhenNamed !== true);
  const unknown = names.filter((name) => !BENCHES.some((bench) => isMeant(bench, name)));
  if (unknown.length > 0) command.error(`error: there is no bench ${unknown.join(', ')}; --list shows all`);
  return BENCHES.filter((bench) => names.some((name) => isMeant(bench, name)));
}

/** A name of a bench, or `storage`, `python` or `page` for all benches whose names begin with it. */
function isMeant(bench: Bench, name: string): boolean {
  return bench.names.includes(name) || (GROUPS.includes(name) && bench.names[0]!.startsWith(`${name}-`));
}

function list(): void {
  for (const { names, about, engines, onlyWhenNamed } of BENCHES) {
    const when = onlyWhenNamed === true ? '; only when named' : '';
    process.stdout.write(`${names.join(', ')}\n    ${about} (${engines.join(', ')}${when})\n`);
  }
}

async function measure(
  bench: Bench,
  engine: Engine,
  options: Options,
  resources: BenchResources,
): Promise<readonly Result[]> {
  const progress = process.stderr.isTTY === true ? process.stderr : undefined;
  const say = (what: string) => progress?.write(`\r\x1b[K${bench.names[0]} on ${engine}, ${what}`);
  const { rounds, seconds, warmup, growthSteps, archiveSteps, metricPoints, pageScale } = options;
  const run: Run = {
    engine,
    rounds,
    seconds,
    warmupSeconds: warmup,
    growthSteps,
    archiveSteps,
    metricPoints,
    pageScale,
    resources: resources,
    showProgress: say,
  };
  const outside = watchOutside();
  try {
    const results = await bench.run(run);
    progress?.write('\r\x1b[K');
    const cores = outside();
    for (const result of results)
      process.stdout.write(options.json === true ? `${jsonLine(result, cores)}\n` : line(result, cores));
    return results;
  } finally {
    progress?.write('\r\x1b[K');
    await resources.clear();
  }
}

function line({ bench, engine, value, unit, ratio, note }: Result, outsideCores: number): string {
  const by = ratio === undefined ? '' : `, ratio ${ratioText(ratio)}`;
  const noteText = note === undefined ? '' : ` (${note})`;
  const busy = outsideCores > 0.3 ? ` [others used ${outsideCores.toFixed(1)} cores meanwhile]` : '';
  return `${bench} on ${engine}: ${value.toPrecision(4)} ${unit}${by}${noteText}${busy}\n`;
}

/** Measures how many cores other programs used. Figures are less reliable when other programs are busy. */
function watchOutside(): () => number {
  const [machineBefore, ownBefore, since] = [machineCpuSeconds(), cpuSeconds([process.pid]), performance.now()];
  return () => {
    const seconds = (performance.now() - since) / 1000;
    return Math.max(0, (machineCpuSeconds() - machineBefore - (cpuSeconds([process.pid]) - ownBefore)) / seconds);
  };
}

function positive(text: string): number {
  const value = Number(text);
  if (!(value > 0)) throw new InvalidArgumentError('It must be a number above 0.');
  return value;
}
