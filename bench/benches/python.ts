import { freePort } from '../../test/support/free_port.ts';
import { alternate, type Bench, type Comparison, compare, figure, median, type Result, type Run } from '../bench.ts';
import { pythonPath, runProgram, runPython } from '../processes.ts';
import type { WriterFigures, WriterSettings } from '../programs/writer.ts';

/** Durations in microseconds. */
interface Percentiles {
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
}

interface Speed {
  readonly perSecond: number;
}

const INGESTED_STEPS = 100_000;

/** A bench of the Python client on SQLite. Without the venv of its tests, it says so and has no results. */
function python(names: readonly string[], about: string, measure: (run: Run) => Promise<Result[]>): Bench {
  return {
    names,
    about,
    engines: ['sqlite'],
    onlyWhenNamed: true,
    async run(run) {
      if (pythonPath() !== undefined) return measure(run);
      process.stderr.write(`${names[0]} is skipped: \`npm run test:python\` makes the venv that it needs\n`);
      return [];
    },
  };
}

/** Returns settings for bench/python/program.py with a new folder for the spool. */
async function settingsOf(run: Run, address: string): Promise<object> {
  const { warmupSeconds, seconds } = run;
  return { address, spool: await run.resources.folder(), warmupSeconds, seconds };
}

async function recordWith(run: Run, task: string, aims: readonly [p50: string, p99?: string]): Promise<Result[]> {
  const server = await run.resources.server('real', run.engine);
  const absent = `127.0.0.1:${await freePort()}`;
  const seen = { up: [] as Percentiles[], down: [] as Percentiles[] };
  const measure = async (into: Percentiles[], address: string) => {
    into.push(await runPython<Percentiles>({ ...(await settingsOf(run, address)), task }));
    return into.at(-1)!.p50;
  };
  await alternate(run, {
    'server up': () => measure(seen.up, server.address),
    'server down': () => measure(seen.down, absent),
  });
  const result = (bench: string, part: keyof Percentiles, of: readonly Percentiles[], aim?: string) =>
    figure(
      run,
      { bench, unit: 'µs', ...(aim === undefined ? {} : { aim }) },
      of.map((figures) => figures[part]),
    );
  const name = task.replace('_', '-');
  return [
    result(`python-${name}`, 'p50', seen.up, aims[0]),
    result(`python-${name}-p99`, 'p99', seen.up, aims[1]),
    result(`python-${name}-down`, 'p50', seen.down, aims[0]),
    result(`python-${name}-down-p99`, 'p99', seen.down, aims[1]),
  ];
}

/** Compares two ways of one task. */
async function compareWays(
  run: Run,
  about: Comparison,
  ways: readonly [string, string],
  measure: (by: string) => Promise<number>,
): Promise<Result> {
  const samples = await alternate(run, Object.fromEntries(ways.map((by) => [by, () => measure(by)])));
  return compare(run, about, samples[ways[0]]!, samples[ways[1]]!);
}

const record = python(
  ['python-record', 'python-record-p99', 'python-record-down', 'python-record-down-p99'],
  'p50 and p99 of step() of CartPole with the spool on, while the server is up and while it is down',
  (run) => recordWith(run, 'record', ['<= 10', '<= 100']),
);

const recordLlm = python(
  ['python-record-llm', 'python-record-llm-p99', 'python-record-llm-down', 'python-record-llm-down-p99'],
  'p50 and p99 of a turn of 2 KB of text with 500 tokens and logprobs, while the server is up and while it is down',
  (run) => recordWith(run, 'record_llm', ['<= 50']),
);

const recordBytes = python(
  ['python-record-bytes'],
  'MB/s of screenshots of 200 KB that step() accepts in a burst of 500',
  async (run) => {
    const server = await run.resources.server('real', run.engine);
    const medians: number[] = [];
    const samples = await alternate(run, {
      bytes: async () => {
        const settings = { ...(await settingsOf(run, server.address)), task: 'record_bytes', images: 500 };
        const { mbPerSecond, p50 } = await runPython<{ mbPerSecond: number; p50: number }>(settings);
        medians.push(p50);
        return mbPerSecond;
      },
    });
    const note = `p50 of a call ${median(medians).toFixed(0)} µs`;
    return [figure(run, { bench: 'python-record-bytes', aim: '>= 500', unit: 'MB/s', note }, samples.bytes)];
  },
);

const ingest = python(
  ['python-ingest'],
  'durable steps/s of one process with four trajectories; against the writers of the TypeScript client',
  async (run) => {
    const { address } = await run.resources.server('real', run.engine);
    const cpu = { python: [] as number[], typescript: [] as number[] };
    const samples = await alternate(run, {
      python: async () => {
        const settings = { ...(await settingsOf(run, address)), task: 'ingest', steps: INGESTED_STEPS };
        const figures = await runPython<WriterFigures>(settings);
        cpu.python.push(figures.cpuMicrosPerStep);
        return figures.stepsPerSecond;
      },
      typescript: async () => {
        const settings: WriterSettings = { address, steps: INGESTED_STEPS };
        const figures = await runProgram<WriterFigures>('writer', settings);
        cpu.typescript.push(figures.cpuMicrosPerStep);
        return figures.stepsPerSecond;
      },
    });
    const note = `CPU of the client a step ${median(cpu.python).toFixed(1)} µs, of the TypeScript client ${median(cpu.typescript).toFixed(1)} µs`;
    const about = { bench: 'python-ingest', aim: '>= 0.7', unit: 'steps/s', note };
    return [compare(run, about, samples.python, samples.typescript)];
  },
);

const vector = python(
  ['python-vector'],
  'CPU a step that 256 environments need besides step(), sent by AppendBatch; against a stream for each',
  async (run) => {
    const { address } = await run.resources.server('real', run.engine);
    const recording: number[] = [];
    const measure = async (by: string) => {
      const settings = { ...(await settingsOf(run, address)), task: 'vector', by };
      const figures = await runPython<{ cpuMicrosPerStep: number; recordingMicrosPerStep: number }>(settings);
      recording.push(figures.recordingMicrosPerStep);
      return figures.cpuMicrosPerStep;
    };
    const about = { bench: 'python-vector', aim: '<= 0.3', unit: 'µs' };
    const result = await compareWays(run, about, ['AppendBatch', 'streams'], measure);
    return [{ ...result, note: `step() ${median(recording).toFixed(1)} µs` }];
  },
);

const read = python(
  ['python-read'],
  '1,000 episodes of 20 steps into arrays by ReadTrajectories, in episodes/s; against one ReadSteps each',
  async (run) => {
    const { address } = await run.resources.server('real', run.engine);
    const settings = await settingsOf(run, address);
    await runPython({ ...settings, task: 'write_episodes' });
    const measure = async (by: string) => (await runPython<Speed>({ ...settings, task: 'read', by })).perSecond;
    const about = { bench: 'python-read', aim: '>= 3', unit: 'episodes/s' };
    return [await compareWays(run, about, ['ReadTrajectories', 'ReadSteps'], measure)];
  },
);

const states = python(
  ['python-states'],
  'reads of 100 contents of 20 KB by their digests, in reads of all/s; against one GetState each',
  async (run) => {
    const { address } = await run.resources.server('real', run.engine);
    const settings = await settingsOf(run, address);
    const { digests } = await runPython<{ digests: readonly string[] }>({ ...settings, task: 'write_states' });
    const measure = async (by: string) =>
      (await runPython<Speed>({ ...settings, task: 'states', by, digests })).perSecond;
    const about = { bench: 'python-states', aim: '>= 5', unit: '/s' };
    return [await compareWays(run, about, ['ReadStates', 'GetState'], measure)];
  },
);

export const pythonClient: readonly Bench[] = [record, recordLlm, recordBytes, ingest, vector, read, states];
