import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { accessHeaders, fetchHere } from '../access.ts';

/** Bytes that the server stores. An element cannot send a key, so with one they are read first. */

/** What the page shows of what agents wrote. Everything else is a download. */
export const IMAGE = /^image\/(png|jpeg|webp|gif|avif)$/;
export const VIDEO = /^video\/(mp4|webm)$/;

const hasAccess = Object.keys(accessHeaders()).length > 0;

/** Returns an address for an image or a video. Empty until its bytes are there. */
export function useStored(address: string, mediaType: string): string {
  const [url, setUrl] = useState('');
  useEffect(() => {
    if (!hasAccess || address === '') return;
    const stop = new AbortController();
    let shown = '';
    read(address, mediaType, stop.signal).then(
      (made) => {
        shown = made;
        if (stop.signal.aborted) URL.revokeObjectURL(made);
        else setUrl(made);
      },
      // The element fails to load it, and says so.
      () => stop.signal.aborted || setUrl(address),
    );
    return () => {
      stop.abort();
      URL.revokeObjectURL(shown);
      setUrl('');
    };
  }, [address, mediaType]);
  return hasAccess ? url : address;
}

interface DownloadProps {
  readonly address: string;
  readonly name: string;
  readonly children: ComponentChildren;
}

export function Download({ address, name, children }: DownloadProps) {
  const [problem, setProblem] = useState('');
  const save = async (event: Event) => {
    if (!hasAccess || !address.startsWith('/')) return;
    event.preventDefault();
    try {
      const href = await read(address, '', undefined);
      Object.assign(document.createElement('a'), { href, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(href), 60_000);
    } catch (error) {
      setProblem(String(error));
    }
  };
  return (
    <>
      <a href={address} download={name} onClick={save}>
        {children}
      </a>
      {problem !== '' && <span class="problem">{problem}</span>}
    </>
  );
}

/** Returns an address of bytes for this tab. Nothing that an agent wrote becomes a document. */
export function addressOfBytes(bytes: ArrayBuffer | Uint8Array<ArrayBuffer>, mediaType: string): string {
  const type = IMAGE.test(mediaType) || VIDEO.test(mediaType) ? mediaType : 'application/octet-stream';
  return URL.createObjectURL(new Blob([bytes], { type }));
}

async function read(address: string, mediaType: string, signal: AbortSignal | undefined): Promise<string> {
  const response = await fetchHere(address, signal === undefined ? {} : { signal });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return addressOfBytes(await response.arrayBuffer(), mediaType);
}
