import { fetchHere } from '../access.ts';
import { contentAddress } from '../api.ts';
import { useLoaded } from '../context.ts';
import { counted, number, visible } from '../format.ts';
import { type ActionTokens, MOST_TOKENS, readTokens, type Tokens } from './tokens.ts';

/** Log-probabilities at and below this have the full colour. */
const LEAST_LIKELY = -4;
/** Less likely tokens are also underlined: colour alone must not convey a meaning. */
const UNDERLINED = Math.log(0.2);

/** The tokens of an action, wherever they are stored. Nothing if it has none. */
export function TokensOf({ of }: { readonly of: ActionTokens }) {
  const { action, logprobsState } = of;
  const isStored = action.tokenIdsState !== undefined || logprobsState !== '';
  const key = isStored ? `${action.tokenIdsState} ${logprobsState}` : '';
  const read = useLoaded(key, async (signal) => (isStored ? readTokens(of, readerOf(signal)) : undefined));
  const inStep = { ids: action.tokenIds, logprobs: action.logprobs, count: action.tokenIds.length };
  const tokens = isStored ? read.value : inStep;
  if (read.error !== undefined) return <p class="problem">{read.error}</p>;
  if (tokens === undefined || tokens.count + tokens.logprobs.length === 0) return null;
  return (
    <>
      <p class="dim">{counted(tokens.count, 'token')}</p>
      {tokens.logprobs.length > 0 && <TokensView tokens={tokens} text={action.content?.text ?? ''} />}
    </>
  );
}

/** Tokens, coloured by their log-probability. Their words are known if the text has as many as there are tokens. */
function TokensView({ tokens: { ids, logprobs, count }, text }: { readonly tokens: Tokens; readonly text: string }) {
  const words = text.match(/\s*\S+/g) ?? [];
  const named = words.length === count;
  return (
    <>
      <p class="tokens">
        {logprobs.slice(0, MOST_TOKENS).map((logprob, at) => (
          <span
            key={at}
            class={logprob < UNDERLINED ? 'unlikely' : ''}
            title={`token ${ids[at] ?? '?'}, log-probability ${number(logprob, 3)}`}
            style={{ '--doubt': `${Math.round(Math.max(0, Math.min(1, logprob / LEAST_LIKELY)) * 70) || 0}%` }}
          >
            {named ? visible(words[at] ?? '') : `${ids[at] ?? '·'} `}
          </span>
        ))}
      </p>
      <p class="dim">
        Darker: less likely. Underlined: less than 20 %.
        {count > MOST_TOKENS && ` The first ${number(MOST_TOKENS)} are shown.`}
      </p>
    </>
  );
}

function readerOf(signal: AbortSignal) {
  return async (digest: string, bytes: number) => {
    const headers = { range: `bytes=0-${bytes - 1}` };
    const response = await fetchHere(contentAddress(digest, ''), { signal, headers });
    if (!response.ok) throw new Error(`the tokens cannot be read: the server answered ${response.status}`);
    const data = new DataView(await response.arrayBuffer());
    const size = Number(response.headers.get('content-range')?.split('/')[1] ?? data.byteLength);
    return { data, size };
  };
}
