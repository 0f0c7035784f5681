#!/usr/bin/env python3
"""trace.py TRAIL MODEL "-D flags": a counter-example found by run.sh, one event a line, in words.

A, B, C are attempts, i1 .. i5 instances, R0, R1 re-seeders, OP the operator of step F; behind the bar the counters and who holds the lock where."""
import re
import subprocess
import sys

if len(sys.argv) != 4:
    sys.exit(__doc__)
trail, model, flags = sys.argv[1:4]
o = subprocess.run(["spin"] + flags.split() + ["-t", "-p", "-k", trail, model], capture_output=True, text=True).stdout
steps={}
for line in o.splitlines():
    mm=re.match(r'\s*(\d+):\s+proc.*state \d+\)\s+\[(.*)\]\s*$',line)
    if mm: steps.setdefault(int(mm.group(1)),[]).append(mm.group(2))
N=5; q=re.search(r'-DN=(\d)',flags); N=int(q.group(1)) if q else 3
C=[0]*N; L=['-']*N; G=[0]*N; rep={}; mv={}; hint={}; rM={}; top=0; copy=0
nm=lambda a:'ABC'[int(a)]; iv=lambda k:'i'+str(int(k)+1)
def ev(ss):
    global top,copy
    t='\n'.join(ss); x=re.search
    if x(r'^oe = ',t,re.M): rM['OP']=top; return "OP says that nobody holds a lock, and looks"
    if (h:=x(r'^oP = \(oP\|\(1<<(\d)',t,re.M)): return f"OP marks {iv(h[1])}"
    if x(r'^ot = 2$',t,re.M): return "OP knows who is lost"
    if (h:=x(r'^oS = \(oS\|\(1<<(\d)',t,re.M)): rM['OP']=max(rM['OP'],C[int(h[1])]); return f"OP bumps {iv(h[1])}: C={C[int(h[1])]}"
    if x(r'^ot = 3$',t,re.M): return "OP has as many as it needs"
    if (h:=x(r'^C\[(\d)\] = oM$',t,re.M)): C[int(h[1])]=rM['OP']; return f"OP seeds {iv(h[1])}, without a wait"
    if (h:=x(r'^C\[(\d)\] = .*oM',t,re.M)): k=int(h[1]); C[k]=max(C[k],rM['OP']); return f"{iv(k)}: step F: the wait ends, C={C[k]}"
    if x(r'^SC = ',t,re.M): copy=C[0]; return f"i1: a copy is made, C={copy}"
    if x(r'^C\[0\] = SC$',t,re.M): C[0]=copy; L[0]='?'; return f"i1: COMES BACK AS THE COPY, C={copy}"
    if x(r'^other\[0\] = .*255',t,re.M): return "i1: an hour has passed, and it has another replication id"
    if (h:=x(r'^other\[(\d)\] = 0$',t,re.M)) and not x(r'rM|losses|^L\[',t,re.M): return f"{iv(h[1])}: is trusted"
    if (h:=x(r'^other\[(\d)\] = \(1\|2\)$',t,re.M)): return f"{iv(h[1])}: restarts with its data"
    if (h:=x(r'^st\[(\d)\] = 1$',t,re.M)):
        a=h[1]; hh=x(r'^hint\[\d\] = (\d)$',t,re.M); e=x(r'^ep\[\d\] = (\d)$',t,re.M)
        hint[a]=int(hh[1]) if hh else 0
        return f"{nm(a)} starts"+(f" hint={hint[a]}" if hint[a] else '')+(f" epoch={e[1]}" if e and ('MODE=2' in flags or 'MODE=5' in flags or 'MODE=6' in flags) else '')
    if (h:=x(r'^L\[(\d)\] = \((\d)\+1\)$',t,re.M)) and not x(r'^rb\[|rr\[',t,re.M):
        k,a=int(h[1]),h[2]
        if 'BADHINT' in flags:
            h2=hint[a]; C[k]= h2 if h2>C[k] else (C[k]+1 if C[k]==0 or h2==0 else C[k])
        else: C[k]=max(hint.get(a,0),C[k]+1)
        L[k]=nm(a); G[k]=C[k]
        rr=x(r'^rep\[',t,re.M)
        if rr: rep[(a,k)]=C[k]
        return f"{iv(k)}: lock({nm(a)}) granted {C[k]}"+('' if rr else ' (reply lost or late)')
    if (h:=x(r'^m\[(\d)\] = .*',t,re.M)) and x(r'^st\[\d\] = 2$',t,re.M):
        a=h[1]; s=int(x(r'\(+(\d+)>>0\)',t)[1]); v={iv(k):rep.get((a,k),0) for k in range(N) if s>>k&1}
        mv[a]=max(v.values()); 
        for k in range(N): rep.pop((a,k),None)
        return f"{nm(a)} uses replies {v}: m={mv[a]}"
    if (h:=x(r'^assert',t,re.M)) and (h:=x(r'tokset>>m\[(\d)\]',t)):
        top=max(top,mv[h[1]])
        return f"{nm(h[1])} SUCCEEDS with token {mv[h[1]]}"
    if (h:=x(r'^st\[(\d)\] = 4$',t,re.M)): return f"{nm(h[1])} gives up (deadline)"
    if (h:=x(r'^rr\[(\d)\] = 1$',t,re.M)): return f"{nm(h[1])} starts a renewal of token {mv[h[1]]}"
    if (h:=x(r'^rr\[(\d)\] = 2$',t,re.M)) or (h:=x(r'assert\(\(m\[(\d)\]>=rh',t)): return f"{nm(h[1])} RENEWAL SUCCEEDS"
    if (h:=x(r'^C\[(\d)\] = .*m\[(\d)\]',t,re.M)):
        k,a=int(h[1]),h[2]; re_=x(r'^L\[',t,re.M); C[k]=max(C[k],mv[a])
        ren=x(r'rr\[',t)
        if re_: L[k]=nm(a); G[k]=mv[a]
        return f"{iv(k)}: {'renew' if ren else 'seal'}({nm(a)},{mv[a]}) ok, C={C[k]}"+(' (lock re-created)' if re_ else '')
    if (h:=x(r'^rn\[(\d)\] = \(1<<7\)',t,re.M)): return f"{nm(h[1])} starts a renewal"
    if x(r'^h\[(\d)\] = 1$',t,re.M): return f"{nm(x(r'^h.(.)',t,re.M)[1])} RENEWAL SUCCEEDS"
    if (h:=x(r'^E\[(\d)\] = (?:re\[(\d)|oe)',t,re.M)) and not x(r'rM',t): return f"{iv(h[1])} is levelled to the epoch of {'R'+h[2] if h[2] else 'OP'}"
    if (h:=x(r'^losses = ',t,re.M)) or x(r'^lostset = ',t,re.M):
        k=int(x(r'^L\[(\d)\] = 0',t,re.M)[1]); C[k]=0; L[k]='-'; G[k]=0; return f"{iv(k)}: STATE LOST"
    if (h:=x(r'^L\[(\d)\] = 0$',t,re.M)): k=int(h[1]); w=L[k]; L[k]='-'; G[k]=0; return f"{iv(k)}: lock of {w} expires / released"
    if (h:=x(r'^rk\[(\d)\] = (\d)',t,re.M)): return f"R{h[1]} reads incarnation of {iv(h[2])}"
    if (h:=x(r'^rS\[(\d)\] = \(rS.*<<(\d)',t,re.M)): rM[h[1]]=max(rM.get(h[1],0),C[int(h[2])]); return f"R{h[1]} reads/bumps {iv(h[2])}: C={C[int(h[2])]}"
    if (h:=x(r'^rt\[(\d)\] = (\d)',t,re.M)): return f"R{h[1]} has its majority"
    if (h:=x(r'^E\[(\d)\] = re\[(\d)',t,re.M)) and x(r'rM',t): C[int(h[1])]=rM.get(h[2],0); return f"R{h[2]} seeds {iv(h[1])}"+" ("+ss[1][:40]+")"
    return 'EV '+' ; '.join(ss)[:150]
for n in sorted(steps): print(f"{n:3}  {ev(steps[n])}   | C={C} L={''.join(L)}")
