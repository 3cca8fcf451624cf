import { useEffect, useState } from 'preact/hooks';
import { Announcements } from './announcements.ts';

/** Announces changes to screen readers, politely and at most every 10 seconds. */
export function Announcer({ text }: { readonly text: string }) {
  const [said, setSaid] = useState('');
  const [announcements] = useState(() => new Announcements(setSaid));
  useEffect(() => announcements.change(text), [text]);
  useEffect(() => () => announcements.end(), []);
  return (
    <p role="status" class="only-read">
      {said}
    </p>
  );
}
