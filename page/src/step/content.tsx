import { useEffect, useMemo, useState } from 'preact/hooks';
import type { Content, Tensor } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import { numbersBytes, tensorText } from '../../../src/domain/numbers/tensor.ts';
import { contentAddress, readContent } from '../api.ts';
import { useLoaded } from '../context.ts';
import { bytes, count, visible } from '../format.ts';
import { RECONNECTED } from '../watch/reconnected.ts';
import type { Stroke } from './marks.ts';
import { addressOfBytes, Download, IMAGE, useStored, VIDEO } from './stored.tsx';

/** Longer contents are folded. */
const FOLDED_LINES = 24;
const FOLDED_LENGTH = 4_000;
/** Larger contents are downloads. */
const LARGE_BYTES = 512 * 1024;

interface ContentViewProps {
  readonly content: Content;
  readonly stroke?: Stroke | undefined;
  /** Text is a program. */
  readonly code?: boolean;
}

/** What agents wrote: only ever text, images and videos, never markup. */
export function ContentView({ content, stroke, code = false }: ContentViewProps) {
  const { text, json, data, stateDigest, uri, tensor, mediaType } = content;
  const url = useBytesAddress(content);
  const size = Number(content.size) || (data?.length ?? 0);
  if (content.prunedTime !== undefined) return <p class="dim">The content was pruned: its bytes are gone.</p>;
  if (text !== undefined) return <TextView text={text} code={code} />;
  if (json !== undefined) return <JsonView json={json} />;
  if (uri !== undefined) return <p class="mono">{visible(uri)}</p>;
  if (tensor !== undefined) return <TensorView tensor={tensor} />;
  if (IMAGE.test(mediaType)) return <MarkedImage url={url} stroke={stroke} />;
  if (VIDEO.test(mediaType)) {
    // biome-ignore lint/a11y/useMediaCaption: recordings of environments have no captions
    return <video src={url} controls />;
  }
  return (
    <p>
      <Download
        address={stateDigest === undefined ? url : contentAddress(stateDigest, mediaType)}
        name={stateDigest ?? 'content'}
      >
        Download
      </Download>{' '}
      <span class="dim">
        {visible(mediaType) || 'bytes'}, {bytes(size)}
      </span>
    </p>
  );
}

/** The type of a tensor and, if it has at most 4,096 numbers, these, one row of the last dimension a line. */
function TensorView({ tensor: { dtype, shape, data, stateDigest } }: { readonly tensor: Tensor }) {
  const form = { dtype, shape };
  const isStored = stateDigest !== undefined && numbersBytes(form) !== undefined;
  const read = useLoaded(isStored ? `tensor ${stateDigest}` : '', async (signal) =>
    isStored ? readContent(stateDigest, signal) : undefined,
  );
  const bytes = data ?? (isStored ? read.value : undefined);
  const text = bytes && tensorText(form, bytes);
  return (
    <>
      <p class="mono">
        tensor {visible(dtype)} [{shape.join(', ')}]
      </p>
      {read.error !== undefined && <p class="problem">{read.error}</p>}
      {text !== undefined && <TextView text={text.replaceAll(',', ', ').replaceAll('], [', '],\n [')} code />}
    </>
  );
}

/** Bytes within a step are shown by an address of their own, which is given back when they are no longer shown. */
function useBytesAddress({ data, stateDigest, mediaType }: Content): string {
  const [url, setUrl] = useState('');
  useEffect(() => {
    if (data === undefined) return;
    const address = addressOfBytes(new Uint8Array(data), mediaType);
    setUrl(address);
    return () => URL.revokeObjectURL(address);
  }, [data, mediaType]);
  const isShown = stateDigest !== undefined && (IMAGE.test(mediaType) || VIDEO.test(mediaType));
  const stored = useStored(isShown ? contentAddress(stateDigest, mediaType) : '', mediaType);
  return isShown ? stored : url;
}

export function MarkedImage({ url, stroke }: { readonly url: string; readonly stroke?: Stroke | undefined }) {
  const [size, setSize] = useState<readonly [number, number]>();
  const [failed, setFailed] = useState<string>();
  useEffect(() => {
    const again = () => setFailed(undefined);
    addEventListener(RECONNECTED, again);
    return () => removeEventListener(RECONNECTED, again);
  }, []);
  if (url === '') return null;
  if (failed === url) return <p class="dim">The image cannot be shown.</p>;
  const [width, height] = size ?? [1, 1];
  const mark = Math.max(width, height) / 60;
  return (
    <div class="image">
      <img
        src={url}
        alt="what the agent saw"
        onLoad={({ currentTarget: image }) => setSize([image.naturalWidth, image.naturalHeight])}
        onError={() => setFailed(url)}
      />
      {stroke !== undefined && size !== undefined && (
        <svg
          viewBox={`0 0 ${width} ${height}`}
          role="img"
          aria-label={`the action, at ${stroke.map((point) => point.join(', ')).join(' to ')}`}
        >
          <polyline points={stroke.map((point) => point.join(',')).join(' ')} stroke-width={mark / 4} />
          {stroke.map(([x, y], at) => (
            <circle key={`${x} ${y} ${at}`} cx={x} cy={y} r={mark} stroke-width={mark / 4} />
          ))}
        </svg>
      )}
    </div>
  );
}

export function JsonView({ json }: { readonly json: string }) {
  const text = useMemo(() => pretty(json), [json]);
  return <TextView text={text} code />;
}

/** Short arrays and objects stay on one line. */
function pretty(json: string): string {
  try {
    const text = JSON.stringify(JSON.parse(json), null, 2);
    return text.length <= 72 ? text.replace(/\n\s*/g, ' ') : text;
  } catch {
    return json;
  }
}

export function TextView({ text, code = false }: { readonly text: string; readonly code?: boolean }) {
  const [open, setOpen] = useState(false);
  const shown = useMemo(() => (open ? text : folded(text)), [text, open]);
  if (text.length >= LARGE_BYTES) {
    return (
      <>
        <pre class={code ? 'code' : 'prose'}>{visible(folded(text))}</pre>
        <p>
          <a href={`data:text/plain;charset=utf-8,${encodeURIComponent(text.toWellFormed())}`} download="content.txt">
            Download
          </a>{' '}
          <span class="dim">all {bytes(text.length)}</span>
        </p>
      </>
    );
  }
  return (
    <>
      <pre class={code ? 'code' : 'prose'}>{visible(shown)}</pre>
      {(shown.length < text.length || open) && (
        <button type="button" class="plain" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? 'Show less' : `Show all ${count(text.split('\n').length)} lines, ${bytes(text.length)}`}
        </button>
      )}
    </>
  );
}

function folded(text: string): string {
  let end = -1;
  for (let line = 0; line < FOLDED_LINES; line += 1) {
    end = text.indexOf('\n', end + 1);
    if (end === -1) break;
  }
  return text.slice(0, Math.min(end === -1 ? text.length : end, FOLDED_LENGTH));
}
