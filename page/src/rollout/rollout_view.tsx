import { useState } from 'preact/hooks';
import { addressOf } from '../address.ts';
import { overrideVerdict, type RolloutRead, readRollout } from '../api.ts';
import { useLoaded, usePage } from '../context.ts';
import { messageOf } from '../errors.ts';
import { count, duration, number, visible } from '../format.ts';
import { Labels } from '../home/home_view.tsx';
import { MetricPlot } from '../run/metric_plot.tsx';
import { StatusMark } from '../status.tsx';
import { JsonView } from '../step/content.tsx';
import { Verdict } from './verdict.tsx';

/** A rollout: its verdict and why, its attempts, its input, and the reward after each turn. */
export function RolloutView({ id }: { readonly id: string }) {
  const { api, canWrite } = usePage();
  const { value, error, reload } = useLoaded(`rollout ${id}`, (signal) => readRollout(api, id, signal));
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
          <span class="dim figure">{count(rollout.turns)} turns</span>
          <span class="space" />
          <a href={`/runs/${rollout.runId}`}>Run</a>
          {rollout.trajectoryId !== '' && (
            <a href={addressOf(`/trees/${rollout.trajectoryId}`, { at: rollout.trajectoryId })}>Steps</a>
          )}
        </div>
        {error !== undefined && <p class="problem">{error}</p>}
        {rollout.statusMessage !== '' && <p class="dim">{visible(rollout.statusMessage)}</p>}
        <Labels labels={rollout.labels} />
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
        {overrides.length === 0 && !canWrite && <p class="dim">None.</p>}
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
        {canWrite && rollout.attempt > 0 && (
          <Override rolloutId={id} overridden={rollout.override?.success !== undefined} onDone={reload} />
        )}
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
      <div class="scroll">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Validator</th>
              <th scope="col">Result</th>
              <th scope="col">Expected</th>
              <th scope="col">Actual</th>
              <th scope="col">Message</th>
            </tr>
          </thead>
          <tbody>
            {validations.map((each) => (
              <tr key={`${each.attempt} ${each.validatorId} ${each.name}`}>
                <th scope="row">{visible(each.name || each.query || each.validatorId)}</th>
                <td>
                  <Verdict rollout={{ success: each.success }} /> {each.advisory && <span class="dim">advisory</span>}
                </td>
                <td>{visible(each.expectedResult)}</td>
                <td>{visible(each.actualResult)}</td>
                <td>{visible(each.errorMessage)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
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
      <div class="scroll">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Attempt</th>
              <th scope="col">Status</th>
              <th scope="col" class="n">
                Reward
              </th>
              <th scope="col">Worker</th>
              <th scope="col" class="n">
                Duration
              </th>
              <th scope="col">Message</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map((each) => {
              const seconds = Number((each.endTime?.seconds ?? 0n) - (each.claimTime?.seconds ?? 0n));
              return (
                <tr key={each.number}>
                  <th scope="row">
                    <a href={addressOf(`/trees/${each.trajectoryId}`, { at: each.trajectoryId })}>
                      Attempt {each.number}
                    </a>
                  </th>
                  <td>
                    <StatusMark status={each.status} />
                  </td>
                  <td class="n">{number(each.reward)}</td>
                  <td>{visible(each.workerId)}</td>
                  <td class="n">{each.endTime === undefined ? '' : duration(Math.max(0, seconds))}</td>
                  <td>{visible(each.message)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface OverrideProps {
  readonly rolloutId: string;
  readonly overridden: boolean;
  readonly onDone: () => void;
}

/** Asks once before it sends. If the server refuses, its message is shown. */
function Override({ rolloutId, overridden, onDone }: OverrideProps) {
  const { api } = usePage();
  const [reason, setReason] = useState('');
  const [wanted, setWanted] = useState<{ readonly success: boolean | undefined; readonly text: string }>();
  const [refusal, setRefusal] = useState('');
  const send = async () => {
    try {
      await overrideVerdict(api, rolloutId, wanted?.success, reason);
      setRefusal('');
      setReason('');
      onDone();
    } catch (error) {
      setRefusal(messageOf(error));
    }
    setWanted(undefined);
  };
  if (wanted !== undefined) {
    return (
      <p class="verdict">
        {wanted.text}?
        <button type="button" onClick={send}>
          Yes
        </button>
        <button type="button" onClick={() => setWanted(undefined)}>
          No
        </button>
      </p>
    );
  }
  const button = (text: string, success: boolean | undefined) => (
    <button type="button" disabled={reason === ''} onClick={() => setWanted({ success, text })}>
      {text}
    </button>
  );
  return (
    <div class="verdict">
      <input
        aria-label="reason"
        placeholder="Reason"
        value={reason}
        maxLength={1000}
        onInput={(event) => setReason(event.currentTarget.value)}
      />
      {button('Set success', true)}
      {button('Set no success', false)}
      {overridden && button('Withdraw', undefined)}
      {refusal !== '' && <p class="problem">{refusal}</p>}
    </div>
  );
}
