import { render } from 'preact';
import { connectHere } from './api.ts';
import { App } from './app.tsx';
import { source } from './early.ts';
import { watchThrough } from './watch/watch.ts';
import './style.css';

watchThrough(source);
const mode = document.querySelector('meta[name=anabranch-page]')?.getAttribute('content');
render(<App api={connectHere()} canWrite={mode === 'write'} />, document.getElementById('app') as HTMLElement);
