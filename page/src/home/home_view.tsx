import { useRef } from 'preact/hooks';
import type { Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { RunWithProgress } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { addressOf } from '../address.ts';
import { Announcer } from '../announcer.tsx';
import { dateOf, watchRoots, watchRuns } from '../api.ts';
import { useLatest, usePage } from '../context.ts';
import { ago, count, counted, duration, nameOf, number, visible } from '../format.ts';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { StatusMark } from '../status.tsx';
import { statusName } from '../status_name.ts';
import { Table } from '../table.tsx';
import { filterOf } from './filter.ts';
import { isFiltered, RunFilterBar } from './filter_bar.tsx';
import { HEIGHT, type RewardLine, readRewardLines, sparkPath, WIDTH } from './sparkline.ts';

/** Runs whose metrics are overlaid. */
const MOST_PICKED = 20;

/** Runs, and the trees that belong to no run. */
export function HomeView() {
  const { address } = usePage();
  const filter = filterOf(address.query);
  const runs = useWatched(`runs ${JSON.stringify(filter)}`, (events) => watchRuns(filter, events));
  const roots = useWatched('roots', watchRoots);
  const error = runs.error ?? roots.error;
  return (
    <div class="home">
      {error !== undefined && <p class="problem">{error}</p>}
      <section aria-labelledby="runs">
        <h1 id="runs">Runs</h1>
        <Lost stale={runs.stale} />
        <Announcer text={announcedOf(runs.value ?? [])} />
        <RunFilterBar />
        {runs.value?.length === 0 ? (
          <p class="dim">{isFiltered(address.query) ? 'No run matches.' : 'No runs yet.'}</p>
        ) : (
          <div aria-busy={runs.isOld}>
            <RunTable runs={runs.value ?? []} />
          </div>
        )}
      </section>
      <section aria-labelledby="trees">
        <h1 id="trees">Trees</h1>
        <Announcer text={counted(roots.value?.length ?? 0, 'tree')} />
        {roots.value?.length === 0 ? (
          <p class="dim">No trees without a run yet.</p>
        ) : (
          <RootTable roots={roots.value ?? []} />
        )}
      </section>
    </div>
  );
}

function announcedOf(runs: readonly RunWithProgress[]): string {
  const running = runs.filter(({ run }) => run !== undefined && statusName(run.status) === 'running');
  return `${counted(runs.length, 'run')}, ${count(running.length)} running`;
}

function RunTable({ runs }: { readonly runs: readonly RunWithProgress[] }) {
  const { address, set } = usePage();
  const lines = useRewardLines(runs);
  const picked = (address.query.get('pick') ?? '').split(',').filter((id) => id !== '');
  const [first, ...others] = picked;
  const pick = (id: string, isPicked: boolean) => {
    const next = isPicked ? [...picked, id].slice(0, MOST_PICKED) : picked.filter((each) => each !== id);
    set({ pick: next.join() }, { replace: true });
  };
  return (
    <>
      <Table columns={['Overlay', 'Run', 'Status', 'Progress', { n: 'Reward' }, 'Labels', { n: 'Updated' }]}>
        {runs.map(({ run, progress }) =>
          run === undefined ? null : (
            <RunRow
              key={run.id}
              run={run}
              progress={progress}
              line={lines.get(run.mainTrajectoryId)}
              picked={picked.includes(run.id)}
              onPick={(isPicked) => pick(run.id, isPicked)}
            />
          ),
        )}
      </Table>
      {first !== undefined && others.length > 0 && (
        <p>
          <a href={addressOf(`/runs/${first}`, { with: others.join() })}>Overlay {count(picked.length)} runs</a>
        </p>
      )}
    </>
  );
}

const NO_LINES: ReadonlyMap<string, RewardLine> = new Map();

/** Reads the rewards of all listed runs with one call, and afterwards those of runs whose rewards change. */
function useRewardLines(listed: readonly RunWithProgress[]): ReadonlyMap<string, RewardLine> {
  const { api } = usePage();
  const known = useRef(NO_LINES);
  const runs = listed.flatMap(({ run }) => run ?? []);
  const version = runs.map(({ mainTrajectoryId, rewardSum }) => `${mainTrajectoryId} ${rewardSum}`).join();
  useLatest('rewards', version, async (signal) => {
    known.current = await readRewardLines(api, runs, known.current, signal);
  });
  return known.current;
}

/** A small line without scales. The number beside it is its last value. */
function Sparkline({ line }: { readonly line: RewardLine | undefined }) {
  const path = line === undefined ? undefined : sparkPath(line.series);
  if (path === undefined) return null;
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true">
      <path d={path} />
    </svg>
  );
}

interface RunRowProps {
  readonly run: Run;
  readonly progress: RunWithProgress['progress'];
  readonly line: RewardLine | undefined;
  readonly picked: boolean;
  readonly onPick: (isPicked: boolean) => void;
}

function RunRow({ run, progress, line, picked, onPick }: RunRowProps) {
  const left = progress?.estimatedRemaining;
  const percent = progress?.percent;
  return (
    <tr>
      <td>
        <input
          type="checkbox"
          checked={picked}
          aria-label={`overlay ${nameOf(run)}`}
          onChange={(event) => onPick(event.currentTarget.checked)}
        />
      </td>
      <th scope="row">
        <a href={`/runs/${run.id}`}>{nameOf(run)}</a> <span class="dim">{visible(run.experimentName)}</span>
      </th>
      <td>
        <StatusMark status={run.status} />
      </td>
      <td>
        {percent !== undefined && (
          <>
            <progress max={100} value={percent} aria-label={`progress of ${nameOf(run)}`} />{' '}
            <span class="figure">{Math.floor(percent)} %</span>
          </>
        )}
        {left !== undefined && <span class="dim"> {duration(Number(left.seconds))} left</span>}
      </td>
      <td class="n">
        <Sparkline line={line} /> {number(run.rewardSum)}
      </td>
      <td class="words">
        <Labels labels={run.labels} />
      </td>
      <td class="n dim">{since(run.updateTime)}</td>
    </tr>
  );
}

function RootTable({ roots }: { readonly roots: readonly Trajectory[] }) {
  return (
    <Table columns={['Tree', 'Status', { n: 'Steps' }, { n: 'Reward' }, 'Labels', { n: 'Updated' }]}>
      {roots.map((root) => (
        <tr key={root.id}>
          <th scope="row">
            <a href={`/trees/${root.id}`}>{nameOf(root)}</a>
          </th>
          <td>
            <StatusMark status={root.status} />
          </td>
          <td class="n">{count(root.nextStepNumber)}</td>
          <td class="n">{number(root.rewardSum)}</td>
          <td class="words">
            <Labels labels={root.labels} />
          </td>
          <td class="n dim">{since(root.updateTime)}</td>
        </tr>
      ))}
    </Table>
  );
}

export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> }) {
  return (
    <>
      {Object.entries(labels).map(([name, value]) => (
        <span class="label" key={name}>
          {visible(name)}={visible(value)}
        </span>
      ))}
    </>
  );
}

function since(time: Parameters<typeof dateOf>[0]): string {
  const date = dateOf(time);
  return date === undefined ? '' : ago(date, new Date());
}
