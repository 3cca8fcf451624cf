import { useEffect, useState } from 'preact/hooks';
import type { SearchHit } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { addressOf } from '../address.ts';
import { useLoaded, usePage } from '../context.ts';
import { messageOf } from '../errors.ts';
import { count, counted, nameOf, visible } from '../format.ts';
import { findInSteps, readNames } from './read.ts';
import type { Scope } from './scope.ts';

/** Names are read for the first trajectories only: each takes a call. The others are shown by the ends of their ids. */
const MOST_NAMES = 24;

interface HitsProps {
  readonly text: string;
  readonly scope: Scope;
}

interface State {
  readonly hits: readonly SearchHit[];
  readonly searched: number;
  /** Where the search continues. */
  readonly token: string;
  readonly phase: 'searching' | 'paused' | 'done';
  readonly error?: string;
}

/** Matches of a text in steps, as they are found. */
export function Hits({ text, scope }: HitsProps) {
  const { api } = usePage();
  const { state, more } = useHits({ text, scope });
  const { hits, searched, phase, error } = state;
  const ids = [...new Set(hits.map(({ trajectoryId }) => trajectoryId))].slice(0, MOST_NAMES);
  const { value: names } = useLoaded(ids.join(), (signal) => readNames(api, ids, signal));
  return (
    <section aria-labelledby="in-steps" aria-busy={phase === 'searching'}>
      <div class="section-bar">
        <h2 id="in-steps">Text in steps</h2>
        <span class="dim figure" role="status">
          {counted(hits.length, 'match').replace(/matchs$/, 'matches')} in {counted(searched, 'step')}
          {phase === 'searching' ? ', searching …' : phase === 'done' ? ', everything searched' : ''}
        </span>
      </div>
      {error !== undefined && <p class="problem">{error}</p>}
      <ol class="hits">
        {hits.map((hit, at) => (
          <Hit key={at} hit={hit} name={nameOf(names?.get(hit.trajectoryId) ?? { id: hit.trajectoryId, name: '' })} />
        ))}
      </ol>
      {phase === 'paused' && (
        <button type="button" onClick={more}>
          Search further
        </button>
      )}
    </section>
  );
}

/** A match leads to its step in the tree. */
function Hit({ hit, name }: { readonly hit: SearchHit; readonly name: string }) {
  const { trajectoryId, stepNumber, field, before, match, after } = hit;
  return (
    <li>
      <a href={addressOf(`/trees/${trajectoryId}`, { at: trajectoryId, step: stepNumber })}>
        {name}, step {count(stepNumber)}
      </a>{' '}
      <span class="dim">{visible(field)}</span>
      <p>
        {visible(before)}
        <mark>{visible(match)}</mark>
        {visible(after)}
      </p>
    </li>
  );
}

function useHits({ text, scope }: HitsProps) {
  const { api } = usePage();
  const [state, setState] = useState<State>({ hits: [], searched: 0, token: '', phase: 'searching' });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    const [earlier, { token }] = [state, state];
    const read = async () => {
      let hits = earlier.hits;
      let last = token;
      for await (const found of findInSteps(api, { text, scope, token }, stop.signal)) {
        hits = [...hits, ...found.hits];
        last = found.token;
        setState({ hits, searched: earlier.searched + found.searched, token: last, phase: 'searching' });
      }
      setState((now) => ({ ...now, phase: last === '' ? 'done' : 'paused' }));
    };
    read().catch((error) => {
      if (!stop.signal.aborted) setState((now) => ({ ...now, phase: 'paused', error: messageOf(error) }));
    });
    return () => stop.abort();
  }, [round]);
  const more = () => {
    setState((now) => ({ hits: now.hits, searched: now.searched, token: now.token, phase: 'searching' }));
    setRound((last) => last + 1);
  };
  return { state, more };
}
