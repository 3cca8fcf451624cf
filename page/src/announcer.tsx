import { useEffect, useState } from 'preact/hooks';
import { Announcements } from './announcements.ts';

/** Tells changes to people who do not see them, politely and seldom. */
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
