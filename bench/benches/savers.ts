import path from 'node:path';
import { alternate, type Bench, compare, median, type Result, type Run } from '../bench.ts';
import { pythonPath, runPython } from '../processes.ts';

type Saver = 'anabranch' | 'sqlite' | 'postgres';

/** Medians in ms, and the bytes that all turns take. */
interface Turns {
  readonly put: number;
  readonly get: number;
  readonly bytes: number;
}

/** The checkpointer of LangGraph beside LangGraph's own, in turns. Needs the venv of the Python client's tests. */
export const savers: Bench = {
  names: ['saver-put-sqlite', 'saver-put-postgres', 'saver-get', 'saver-bytes', 'saver-threads'],
  about: 'checkpoints of LangGraph: 200 turns of a 93 KB state of which 20 of 965 channels change; 64 threads at once',
  engines: ['sqlite'],
  onlyWhenNamed: true,
  async run(run) {
    if (pythonPath() === undefined) {
      process.stderr.write('savers are skipped: `npm run test:python` makes the venv that they need\n');
      return [];
    }
    return [...(await turns(run)), await threads(run)];
  },
};

async function turns(run: Run): Promise<Result[]> {
  const where: Record<Saver, string> = {
    anabranch: (await run.resources.server('real', run.engine)).address,
    sqlite: path.join(await run.resources.folder(), 'checkpoints.db'),
    postgres: await run.resources.database('postgres'),
  };
  const seen: Record<Saver, Turns[]> = { anabranch: [], sqlite: [], postgres: [] };
  const spool = await run.resources.folder();
  const measure = (by: Saver) => async (seed: number) => {
    const figures = await runPython<Turns>({ task: 'saver_turns', spool, by, where: where[by], seed });
    seen[by].push(figures);
    return figures.put;
  };
  const puts = await alternate(run, {
    anabranch: measure('anabranch'),
    sqlite: measure('sqlite'),
    postgres: measure('postgres'),
  });
  const of = (by: Saver, part: keyof Turns) => seen[by].map((figures) => figures[part]);
  const kilobytes = (by: Saver) => `${by} ${(median(of(by, 'bytes')) / 1024).toFixed(0)} KiB`;
  return [
    compare(run, { bench: 'saver-put-sqlite', unit: 'ms', aim: '<= 1.2' }, puts.anabranch, puts.sqlite),
    compare(run, { bench: 'saver-put-postgres', unit: 'ms', aim: '<= 0.8' }, puts.anabranch, puts.postgres),
    compare(run, { bench: 'saver-get', unit: 'ms', aim: '<= 1' }, of('anabranch', 'get'), of('postgres', 'get')),
    compare(
      run,
      { bench: 'saver-bytes', unit: 'bytes', aim: '<= 0.05', note: kilobytes('postgres') },
      of('anabranch', 'bytes'),
      of('sqlite', 'bytes'),
    ),
  ];
}

async function threads(run: Run): Promise<Result> {
  const where = {
    anabranch: (await run.resources.server('real', run.engine)).address,
    postgres: await run.resources.database('postgres'),
  };
  const spool = await run.resources.folder();
  const measure = (by: keyof typeof where) => async () => {
    const settings = { task: 'saver_threads', spool, by, where: where[by] };
    return (await runPython<{ perSecond: number }>(settings)).perSecond;
  };
  const samples = await alternate(run, { anabranch: measure('anabranch'), postgres: measure('postgres') });
  return compare(run, { bench: 'saver-threads', unit: 'puts/s', aim: '>= 2' }, samples.anabranch, samples.postgres);
}
