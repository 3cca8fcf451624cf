import { useMemo } from 'preact/hooks';
import type { Group, Rollout } from '../../../gen/es/anabranch/v1/rollout_pb.js';
import type { RunPicture } from '../../../src/client/web/index.ts';
import { Announcer } from '../announcer.tsx';
import { listParentDifferences, watchRunHere } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { count, counted, duration, nameOf, number, visible } from '../format.ts';
import { Labels } from '../home/home_view.tsx';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { runOperations } from '../operations/operation.ts';
import { Operations } from '../operations/operations.tsx';
import { StatusMark } from '../status.tsx';
import { statusName } from '../status_name.ts';
import { JsonView } from '../step/content.tsx';
import { Table } from '../table.tsx';
import { Metrics } from './metrics.tsx';
import { stageName } from './stage_name.ts';
import { Timeline } from './timeline.tsx';

/** A run, live: header, metrics, groups, timeline and config. */
export function RunView({ id }: { readonly id: string }) {
  const { api } = usePage();
  const watched = useWatched(`run ${id}`, (events) => watchRunHere(api, id, events));
  const { value: picture, error, stale } = watched;
  if (picture === undefined && error !== undefined) return <p class="problem">{error}</p>;
  // The metrics are watched from the start, by the call that watches the run.
  return (
    <div class="run">
      {picture === undefined ? (
        <p class="loading">Loading the run …</p>
      ) : (
        <RunHeader picture={picture} stale={stale} error={error} />
      )}
      <Metrics runId={id} />
      {picture !== undefined && (
        <>
          <Groups picture={picture} />
          <Timeline picture={picture} />
          <Config picture={picture} />
        </>
      )}
    </div>
  );
}

function RunHeader({
  picture: { run, progress, stages, rollouts },
  stale,
  error,
}: {
  readonly picture: RunPicture;
  readonly stale: boolean;
  readonly error: string | undefined;
}) {
  const left = progress.estimatedRemaining;
  const open = [...stages.values()].filter((stage) => statusName(stage.status) === 'running');
  const waiting = useMemo(() => waitsFor(rollouts.values()), [rollouts]);
  return (
    <header class="run-header">
      <div class="title-bar">
        <h1>{nameOf(run)}</h1>
        <span class="dim">{visible(run.experimentName)}</span>
        <StatusMark status={run.status} />
        <Lost stale={stale} />
        <span class="space" />
        {run.mainTrajectoryId !== '' && <a href={`/trees/${run.mainTrajectoryId}`}>Tree</a>}
        {run.parentId !== '' && <a href={`/runs/${run.parentId}`}>Parent run</a>}
      </div>
      {error !== undefined && <p class="problem">{error}</p>}
      <div class="run-progress">
        {progress.percent !== undefined && (
          <>
            <progress max={100} value={progress.percent} aria-label="progress" />
            <strong class="figure">{Math.floor(progress.percent)} %</strong>
          </>
        )}
        {left !== undefined && <span>{duration(Number(left.seconds))} left</span>}
        {progress.turnsExpected > 0n && (
          <span class="dim figure">
            {count(progress.turnsDone)} of {count(progress.turnsExpected)} turns
          </span>
        )}
        {waiting !== '' && <span class="dim">{waiting}</span>}
        {open.map((stage) => (
          <span class="dim" key={stage.id}>
            {stageName(stage)}
            {stage.phase !== '' && `: ${visible(stage.phase)}`}
          </span>
        ))}
        {run.phase !== '' && <span class="dim">{visible(run.phase)}</span>}
        {run.statusMessage !== '' && <span class="dim">{visible(run.statusMessage)}</span>}
        <Labels labels={run.labels} />
      </div>
      <Operations of={runOperations(run)} />
      <Announcer
        text={`${nameOf(run)}: ${statusName(run.status)}, ${counted(progress.turnsDone, 'turn')}${waiting && `, ${waiting}`}`}
      />
    </header>
  );
}

/** Returns the rollouts that a run waits for, in words. Empty if it waits for none. */
function waitsFor(rollouts: Iterable<Rollout>): string {
  const [live, queued] = [new Set<string>(), new Set<string>()];
  for (const { id, status } of rollouts) {
    const name = statusName(status);
    if (name === 'running' || name === 'initializing') live.add(id);
    else if (name === 'pending') queued.add(id);
  }
  const parts = [
    live.size > 0 ? `${counted(live.size, 'rollout')} in progress` : '',
    queued.size > 0 ? `${count(queued.size)} queued` : '',
  ];
  return parts.filter((part) => part !== '').join(', ');
}

/** More groups are not listed: the newest are. */
const MOST_GROUPS = 100;

function Groups({ picture: { run, groups, rollouts, stages } }: { readonly picture: RunPicture }) {
  const byGroup = useMemo(() => Map.groupBy(rollouts.values(), ({ groupId }) => groupId), [rollouts]);
  const most = useMemo(
    () => Math.max(1e-9, ...[...rollouts.values()].map(({ reward }) => Math.abs(reward ?? 0))),
    [rollouts],
  );
  const all = useMemo(
    () =>
      [...groups.values()].sort(
        (a, b) => Number((b.createTime?.seconds ?? 0n) - (a.createTime?.seconds ?? 0n)) || Number(b.number - a.number),
      ),
    [groups],
  );
  if (all.length === 0) return null;
  return (
    <section aria-labelledby="groups">
      <header class="section-bar">
        <h2 id="groups">Groups</h2>
        <span class="dim">
          {all.length > MOST_GROUPS ? `the newest ${MOST_GROUPS} of ${count(all.length)}` : count(all.length)}
        </span>
      </header>
      <Table columns={['Group', 'Stage', 'Rollouts, by reward', { n: 'Mean ± std' }, { n: 'Success' }, 'Status']}>
        {all.slice(0, MOST_GROUPS).map((group) => (
          <tr key={group.id}>
            <th scope="row">
              <a href={`/runs/${run.id}/groups/${group.id}`}>Group {count(group.number)}</a>
            </th>
            <td class="dim">{stageName(stages.get(group.stageId))}</td>
            <td>
              <RewardBars rollouts={byGroup.get(group.id) ?? []} most={most} />
            </td>
            <td class="n">
              {number(group.statistics?.rewardMean)} ± {number(group.statistics?.rewardStd)}
            </td>
            <td class="n">{successOf(group)}</td>
            <td>
              <StatusMark status={group.status} />
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

function successOf({ statistics }: Group): string {
  return statistics === undefined ? '' : `${count(statistics.successCount)} of ${count(statistics.judgedCount)}`;
}

function RewardBars({ rollouts, most }: { readonly rollouts: readonly Rollout[]; readonly most: number }) {
  return (
    <span class="bars">
      {rollouts
        .toSorted((a, b) => Number(a.number - b.number))
        .map((rollout) => {
          const verdict = rollout.success === undefined ? '' : rollout.success ? 'success' : 'no success';
          const words = `rollout ${rollout.number}, ${statusName(rollout.status)}, reward ${number(rollout.reward)}${verdict && `, ${verdict}`}${rollout.attempt > 1 ? `, attempt ${rollout.attempt}` : ''}`;
          return (
            <a
              key={rollout.id}
              href={`/rollouts/${rollout.id}`}
              class={`bar s-${verdict === '' ? statusName(rollout.status) : rollout.success ? 'completed' : 'failed'}`}
              title={words}
              aria-label={words}
            >
              <span
                style={{ height: `${Math.max(2, (Math.abs(rollout.reward ?? 0) / most) * 26)}px` }}
                class={rollout.success === false ? 'hollow' : ''}
              />
              <svg viewBox="0 0 16 16" aria-hidden="true">
                {rollout.success !== undefined && (
                  <path d={rollout.success ? 'M3.5 8.5l3 3l6-7' : 'M4 4l8 8M12 4l-8 8'} />
                )}
              </svg>
              {rollout.attempt > 1 && <small aria-hidden="true">×{rollout.attempt}</small>}
            </a>
          );
        })}
    </span>
  );
}

function Config({ picture: { run } }: { readonly picture: RunPicture }) {
  const { api } = usePage();
  const differences = useLoaded(`parent ${run.id} ${run.parentId}`, (signal) =>
    listParentDifferences(api, run, signal),
  );
  if (run.configJson === '' && (differences.value ?? []).length === 0) return null;
  return (
    <section aria-labelledby="config">
      <header class="section-bar">
        <h2 id="config">Config</h2>
      </header>
      {differences.value !== undefined && differences.value.length > 0 && (
        <table class="changes">
          <caption>Differences from the parent run</caption>
          <tbody>
            {differences.value.map(({ path, valueJson, otherValueJson }) => (
              <tr key={path}>
                <th scope="row">{visible(path)}</th>
                <td>{valueJson !== '' && <del>{visible(valueJson)}</del>}</td>
                <td>{otherValueJson !== '' && <ins>{visible(otherValueJson)}</ins>}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {run.configJson !== '' && <JsonView json={run.configJson} />}
    </section>
  );
}
