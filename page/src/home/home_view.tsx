import type { RunWithProgress } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import type { Trajectory } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { dateOf, listRoots, watchRuns } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { ago, count, duration, nameOf, number, visible } from '../format.ts';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { StatusMark } from '../status.tsx';

/** Runs, and the trees that belong to no run. */
export function HomeView() {
  const { api } = usePage();
  const runs = useWatched('runs', (events) => watchRuns(api, events));
  const roots = useLoaded('roots', (signal) => listRoots(api, signal));
  const error = runs.error ?? roots.error;
  return (
    <div class="home">
      {error !== undefined && <p class="problem">{error}</p>}
      <section aria-labelledby="runs">
        <h1 id="runs">Runs</h1>
        <Lost stale={runs.stale} />
        {runs.value?.length === 0 ? <p class="dim">No runs yet.</p> : <RunTable runs={runs.value ?? []} />}
      </section>
      <section aria-labelledby="trees">
        <h1 id="trees">Trees</h1>
        {roots.value?.length === 0 ? (
          <p class="dim">No trees without a run yet.</p>
        ) : (
          <RootTable roots={roots.value ?? []} />
        )}
      </section>
    </div>
  );
}

function RunTable({ runs }: { readonly runs: readonly RunWithProgress[] }) {
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Status</th>
            <th scope="col">Progress</th>
            <th scope="col" class="n">
              Reward
            </th>
            <th scope="col">Labels</th>
            <th scope="col" class="n">
              Updated
            </th>
          </tr>
        </thead>
        <tbody>
          {runs.map((each) => (
            <RunRow key={each.run?.id} {...each} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function RunRow({ run, progress }: RunWithProgress) {
  if (run === undefined) return null;
  const left = progress?.estimatedRemaining;
  const percent = progress?.percent;
  return (
    <tr>
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
      <td class="n">{number(run.rewardSum)}</td>
      <td>
        <Labels labels={run.labels} />
      </td>
      <td class="n dim">{since(run.updateTime)}</td>
    </tr>
  );
}

function RootTable({ roots }: { readonly roots: readonly Trajectory[] }) {
  return (
    <div class="scroll">
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Tree</th>
            <th scope="col">Status</th>
            <th scope="col" class="n">
              Steps
            </th>
            <th scope="col" class="n">
              Reward
            </th>
            <th scope="col">Labels</th>
            <th scope="col" class="n">
              Updated
            </th>
          </tr>
        </thead>
        <tbody>
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
              <td>
                <Labels labels={root.labels} />
              </td>
              <td class="n dim">{since(root.updateTime)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
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
