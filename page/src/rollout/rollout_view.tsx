import { useState } from 'preact/hooks';
import { addressOf } from '../address.ts';
import { Announcer } from '../announcer.tsx';
import { type RolloutRead, readRollout, watchRollouts } from '../api.ts';
import { useLatest, usePage } from '../context.ts';
import { count, counted, duration, number, visible } from '../format.ts';
import { Labels } from '../home/home_view.tsx';
import { useWatched } from '../live.ts';
import { Lost } from '../lost.tsx';
import { rolloutOperations } from '../operations/operation.ts';
import { Operations } from '../operations/operations.tsx';
import { MetricPlot } from '../run/metric_plot.tsx';
import { StatusMark } from '../status.tsx';
import { statusName } from '../status_name.ts';
import { JsonView } from '../step/content.tsx';
import { Table } from '../table.tsx';
import { Verdict } from './verdict.tsx';

/** A rollout: its verdict and why, its attempts, its input, and the reward after each turn. */
export function RolloutView({ id }: { readonly id: string }) {
  const { api } = usePage();
  const [round, setRound] = useState(0);
  const [runId, setRunId] = useState('');
  const watched = useWatched(`rollout of ${runId}`, (events) => watchRollouts(runId, (each) => each.id === id, events));
  const { value, error } = useLatest(`rollout ${id}`, `${round} ${watched.value}`, async (signal) => {
    const read = await readRollout(api, id, signal);
    setRunId(read.rollout.runId);
    return read;
  });
  if (value === undefined)
    return error === undefined ? <p class="loading">Loading the rollout …</p> : <p class="problem">{error}</p>;
  const { rollout, attempts, validations, overrides, rewards } = value;
  return (
    <div class="rollout">
      <header>
        <div class="title-bar">
          <h1>Rollout {count(rollout.number)}</h1>
          <a href={`/runs/${rollout.runId}/groups/${rollout.groupId}`}>Group {count(rollout.groupNumber)}</a>
          <StatusMark status={rollout.status} />
          <Verdict rollout={rollout} />
          <span class="figure">reward {number(rollout.reward)}</span>
          <span class="dim figure">{counted(rollout.turns, 'turn')}</span>
          <Lost stale={watched.stale} />
          <Announcer text={`${statusName(rollout.status)}, ${counted(rollout.turns, 'turn')}`} />
          <span class="space" />
          <a href={`/runs/${rollout.runId}`}>Run</a>
          {rollout.trajectoryId !== '' && (
            <a href={addressOf(`/trees/${rollout.trajectoryId}`, { at: rollout.trajectoryId })}>Steps</a>
          )}
        </div>
        {error !== undefined && <p class="problem">{error}</p>}
        {rollout.statusMessage !== '' && <p class="dim">{visible(rollout.statusMessage)}</p>}
        <Labels labels={rollout.labels} />
        <Operations of={rolloutOperations(rollout)} onDone={() => setRound(round + 1)} />
      </header>
      {rewards.steps.length > 0 && (
        <section aria-label="reward">
          <div class="metric-place">
            <MetricPlot
              title="Sum of rewards by turn"
              lines={[{ name: 'sum of rewards', place: 0, series: rewards, points: rewards.steps.length }]}
              smooth={0}
              onZoom={() => undefined}
            />
          </div>
        </section>
      )}
      <Validations validations={validations} />
      <section aria-labelledby="verdict">
        <div class="section-bar">
          <h2 id="verdict">Verdict by hand</h2>
        </div>
        {overrides.length === 0 && <p class="dim">None.</p>}
        <ul>
          {overrides.map((each) => (
            <li key={String(each.ordinal)}>
              {each.success === undefined ? 'withdrawn' : each.success ? 'success' : 'no success'}:{' '}
              {visible(each.reason)}{' '}
              <span class="dim">
                {visible(each.actor)}, attempt {each.attempt}
              </span>
            </li>
          ))}
        </ul>
      </section>
      <Attempts attempts={attempts} />
      {rollout.inputJson !== '' && (
        <section aria-labelledby="input">
          <div class="section-bar">
            <h2 id="input">Input</h2>
          </div>
          <JsonView json={rollout.inputJson} />
        </section>
      )}
    </div>
  );
}

function Validations({ validations }: Pick<RolloutRead, 'validations'>) {
  if (validations.length === 0) return null;
  return (
    <section aria-labelledby="validations">
      <div class="section-bar">
        <h2 id="validations">Validations</h2>
      </div>
      <Table label="results of validators" columns={['Validator', 'Result', 'Expected', 'Actual', 'Message']}>
        {validations.map((each) => (
          <tr key={`${each.attempt} ${each.validatorId} ${each.name}`}>
            <th scope="row">{visible(each.name || each.query || each.validatorId)}</th>
            <td>
              <Verdict rollout={{ success: each.success }} /> {each.advisory && <span class="dim">advisory</span>}
            </td>
            <td class="words">{visible(each.expectedResult)}</td>
            <td class="words">{visible(each.actualResult)}</td>
            <td class="words">
              {visible(each.errorMessage)}
              {each.detailsJson !== '' && <JsonView json={each.detailsJson} />}
            </td>
          </tr>
        ))}
      </Table>
    </section>
  );
}

function Attempts({ attempts }: Pick<RolloutRead, 'attempts'>) {
  if (attempts.length === 0) return null;
  return (
    <section aria-labelledby="attempts">
      <div class="section-bar">
        <h2 id="attempts">Attempts</h2>
      </div>
      <Table columns={['Attempt', 'Status', { n: 'Reward' }, 'Worker', { n: 'Duration' }, 'Message']}>
        {attempts.map((each) => {
          const seconds = Number((each.endTime?.seconds ?? 0n) - (each.claimTime?.seconds ?? 0n));
          return (
            <tr key={each.number}>
              <th scope="row">
                <a href={addressOf(`/trees/${each.trajectoryId}`, { at: each.trajectoryId })}>Attempt {each.number}</a>
              </th>
              <td>
                <StatusMark status={each.status} />
              </td>
              <td class="n">{number(each.reward)}</td>
              <td>{visible(each.workerId)}</td>
              <td class="n">{each.endTime === undefined ? '' : duration(Math.max(0, seconds))}</td>
              <td class="words">{visible(each.message)}</td>
            </tr>
          );
        })}
      </Table>
    </section>
  );
}
