/* Redlock with a fencing token: lock / seal / renew over N independent
 * instances, asynchronous adversarial network and clocks.
 *
 * One process whose options are the atomic events; any interleaving is
 * possible, so a message that was "sent" may be executed at any later moment,
 * never, or again and again (loss, delay, reordering, duplication); a reply
 * may be used at any later moment or never; a client may stop anywhere.
 * Each acquisition attempt a = 1..A uses its own random lock value, here "a".
 * A real client's retries are simply further attempts.  Release messages and
 * TTL expiry at wrong moments are both covered by EXPIRE (L may drop any time).
 *
 * Configuration (spin -D...):
 *  N, QN            instances and quorum           (default 3, 2)
 *  A, CMAX          attempts, bound on counters    (default 3, 4)
 *  HMAX             hints 0..HMAX chosen by the adversary (default 0 = no hint)
 *  SEAL             what the seal script checks:
 *      0 nothing (BROKEN)      1 L==me                     (BROKEN)
 *      2 L==me, and only instances whose grant reply is in m (BROKEN with DUP)
 *      3 as 2 and grant number equals the one replied
 *      4 L==me and grant number <= m                       (recommended)
 *  FAST             1: a grant that returned exactly m counts as sealed
 *  NOSEAL           1: plain max of the counters, no phase 2 (BROKEN)
 *  BADHINT          1: C=max(C,hint) without the +1 (BROKEN)
 *  DUP              1: lock messages may be executed more than once
 *  ANYM             1: m may be the max of any non-empty set of replies
 *  UPJUMP           1: counters may jump upwards at any time
 *  RENEW            1/2/3/4: renewal, see RENEWX
 *  RES              1: a resource with the rule "reject token < highest seen"
 *  M2               1: assert the (false) order claim M2
 *  LOSE             f: up to f distinct instances may lose L and C any number
 *                   of times; INC=1: replies carry an incarnation number that
 *                   the seal checks
 *  REACH            n: assert that n successes are impossible (sanity check)
 */
#ifndef N
#define N 3
#endif
#ifndef QN
#define QN 2
#endif
#ifndef A
#define A 3
#endif
#ifndef CMAX
#define CMAX 4
#endif
#ifndef HMAX
#define HMAX 0
#endif
#ifndef SEAL
#define SEAL 4
#endif
#ifndef FAST
#define FAST 0
#endif
#ifndef NOSEAL
#define NOSEAL 0
#endif
#ifndef BADHINT
#define BADHINT 0
#endif
#ifndef DUP
#define DUP 1
#endif
#ifndef ANYM
#define ANYM 0
#endif
#ifndef UPJUMP
#define UPJUMP 0
#endif
#ifndef RENEW
#define RENEW 0
#endif
#ifndef RES
#define RES 0
#endif
#ifndef M2
#define M2 0
#endif
#ifndef LOSE
#define LOSE 0
#endif
#ifndef INC
#define INC 0
#endif

#define MAX(x,y)   ((x) > (y) -> (x) : (y))
#define BIT(k)     (1<<(k))
#define HAS(s,k)   (((s)>>(k))&1)
#define CNT(s)     (HAS(s,0)+HAS(s,1)+HAS(s,2)+HAS(s,3)+HAS(s,4))
#define R(a,k)     rep[(a)*N+(k)]
#define V(a)       ((a)+1)

byte L[N];          /* lock value, 0 = empty */
byte G[N];          /* grant number stored with the lock value */
byte C[N];          /* durable counter */
byte st[A];         /* 0 idle, 1 locking, 2 sealing, 3 holds */
byte rep[A*N];      /* grant reply of instance k, 0 = none */
byte m[A];          /* the attempt's token */
byte sr[A];         /* bit k: k counted as sealed */
byte hs[A];         /* highest token issued when the attempt started */
#if HMAX > 0
byte hint[A];
#define HINT(a) hint[a]
#else
#define HINT(a) 0
#endif
#if SEAL == 2 || SEAL == 3 || INC
byte mask[A];       /* replies that m was computed from */
#endif
#if !DUP
byte done[A];       /* lock message already executed at k */
#endif
short tokset;       /* tokens issued */
byte maxtok;
#ifdef REACH
byte nsucc;
#endif
#if RENEW
byte rr[A]; byte rb[A]; byte rh[A];
#endif
#if RES
byte hi; byte cur; byte superseded;
#endif
#if LOSE
byte lostset;
byte inc[N];
#if INC
byte rinc[A*N];
#endif
#endif
byte t;             /* scratch, always reset */

#if BADHINT
#define NEXT(a,k)  (HINT(a) > C[k] -> HINT(a) : (C[k] == 0 || HINT(a) == 0 -> C[k]+1 : C[k]))
#else
#define NEXT(a,k)  (HINT(a) > C[k]+1 -> HINT(a) : C[k]+1)
#endif

#define START(a) \
  :: d_step { st[a]==0 && (a==0 || st[(a)-(a>0)]!=0) -> st[a]=1; hs[a]=maxtok }
#define STARTH(a,h) \
  :: d_step { st[a]==0 && (a==0 || st[(a)-(a>0)]!=0) -> st[a]=1; hs[a]=maxtok; hint[a]=h }

#if DUP
#define P1G(a,k) 1
#define P1D(a,k) skip
#else
#define P1G(a,k) !HAS(done[a],k)
#define P1D(a,k) done[a]=done[a]|BIT(k)
#endif
#if INC
#define SETINC(a,k) rinc[(a)*N+(k)]=inc[k]
#else
#define SETINC(a,k) skip
#endif
/* lock script; the second form: the reply is lost or not the first one */
#define P1(a,k) \
  :: d_step { st[a]>0 && L[k]==0 && P1G(a,k) && C[k]<CMAX -> \
       C[k]=NEXT(a,k); L[k]=V(a); G[k]=C[k]; P1D(a,k); \
       if :: st[a]==1 -> R(a,k)=C[k]; SETINC(a,k) :: else fi } \
  :: d_step { st[a]==1 && L[k]==0 && P1G(a,k) && C[k]<CMAX && (!DUP || R(a,k)!=0) -> \
       C[k]=NEXT(a,k); L[k]=V(a); G[k]=C[k]; P1D(a,k) }

#define IN(s,a,k)  (!HAS(s,k) || R(a,k)!=0)
#define RV(s,a,k)  (HAS(s,k) -> R(a,k) : 0)
#if N == 3
#define ALLIN(s,a) (IN(s,a,0) && IN(s,a,1) && IN(s,a,2))
#define MAXR(s,a)  MAX(RV(s,a,0),MAX(RV(s,a,1),RV(s,a,2)))
#define EQ(s,a)    (EQ1(s,a,0)|EQ1(s,a,1)|EQ1(s,a,2))
#define CLRREP(a)  R(a,0)=0; R(a,1)=0; R(a,2)=0
#elif N == 4
#define ALLIN(s,a) (IN(s,a,0) && IN(s,a,1) && IN(s,a,2) && IN(s,a,3))
#define MAXR(s,a)  MAX(MAX(RV(s,a,0),RV(s,a,3)),MAX(RV(s,a,1),RV(s,a,2)))
#define EQ(s,a)    (EQ1(s,a,0)|EQ1(s,a,1)|EQ1(s,a,2)|EQ1(s,a,3))
#define CLRREP(a)  R(a,0)=0; R(a,1)=0; R(a,2)=0; R(a,3)=0
#elif N == 5
#define ALLIN(s,a) (IN(s,a,0) && IN(s,a,1) && IN(s,a,2) && IN(s,a,3) && IN(s,a,4))
#define MAXR(s,a)  MAX(RV(s,a,4),MAX(MAX(RV(s,a,0),RV(s,a,3)),MAX(RV(s,a,1),RV(s,a,2))))
#define EQ(s,a)    (EQ1(s,a,0)|EQ1(s,a,1)|EQ1(s,a,2)|EQ1(s,a,3)|EQ1(s,a,4))
#define CLRREP(a)  R(a,0)=0; R(a,1)=0; R(a,2)=0; R(a,3)=0; R(a,4)=0
#endif
#define EQ1(s,a,k) (HAS(s,k) && R(a,k)==m[a] -> BIT(k) : 0)

#if ANYM
#define ENOUGH(s) ((s)!=0)
#else
#define ENOUGH(s) (CNT(s)>=QN)
#endif
#if SEAL == 2 || SEAL == 3 || INC
#define SETMASK(a,s) mask[a]=s
#else
#define SETMASK(a,s) skip
#endif
#if SEAL == 3
#define AFTER(a) skip
#else
#define AFTER(a) CLRREP(a)
#endif
#if NOSEAL
#define PRE(s,a) (s)
#elif FAST
#define PRE(s,a) EQ(s,a)
#else
#define PRE(s,a) 0
#endif
/* the client fixes m from a set s of replies */
#define CHOOSE(a,s) \
  :: d_step { st[a]==1 && ENOUGH(s) && ALLIN(s,a) -> \
       m[a]=MAXR(s,a); sr[a]=PRE(s,a); SETMASK(a,s); st[a]=2; AFTER(a) }

#if SEAL == 0
#define CHK(a,k) 1
#elif SEAL == 1
#define CHK(a,k) (L[k]==V(a))
#elif SEAL == 2
#define CHK(a,k) (L[k]==V(a) && HAS(mask[a],k))
#elif SEAL == 3
#define CHK(a,k) (L[k]==V(a) && HAS(mask[a],k) && G[k]==R(a,k))
#else
#define CHK(a,k) (L[k]==V(a) && G[k]<=m[a])
#endif
#if INC
#define CHKI(a,k) (HAS(mask[a],k) && inc[k]==rinc[(a)*N+(k)])
#else
#define CHKI(a,k) 1
#endif
#define SEALX(a,k) \
  :: d_step { st[a]>=2 && CHK(a,k) && CHKI(a,k) && (C[k]<m[a] || (st[a]==2 && !HAS(sr[a],k))) -> \
       C[k]=MAX(C[k],m[a]); if :: st[a]==2 -> sr[a]=sr[a]|BIT(k) :: else fi }

#if M2
#define CHECKM2(a) assert(m[a]>maxtok)
#else
#define CHECKM2(a) skip
#endif
#ifdef REACH
#define CHECKR nsucc++; assert(nsucc<REACH)
#else
#define CHECKR skip
#endif
#define SUCCESS(a) \
  :: d_step { st[a]==2 && CNT(sr[a])>=QN -> \
       assert(!HAS(tokset,m[a]));      /* U  */ \
       assert(m[a]>hs[a]);             /* M  */ \
       CHECKM2(a); CHECKR; \
       tokset=tokset|BIT(m[a]); maxtok=MAX(maxtok,m[a]); \
       st[a]=3; sr[a]=0; hs[a]=0 }

#define EXPIRE(k) \
  :: d_step { L[k]!=0 -> L[k]=0; G[k]=0 }
#define UP(k) \
  :: d_step { C[k]<CMAX -> C[k]=C[k]+1 }

/* renewal: 1 checks L==me only; 2 the seal script again (L==me, G<=m);
   3 re-creates a missing lock unconditionally;
   4 re-creates it only where C<=m (nobody was granted there since) */
#if RENEW == 1
#define RCHK(a,k) (L[k]==V(a))
#elif RENEW == 2
#define RCHK(a,k) (L[k]==V(a) && G[k]<=m[a])
#elif RENEW == 3
#define RCHK(a,k) (L[k]==0 || (L[k]==V(a) && G[k]<=m[a]))
#elif RENEW == 4
#define RCHK(a,k) ((L[k]==0 && C[k]<=m[a]) || (L[k]==V(a) && G[k]<=m[a]))
#endif
#define RENEWS(a) \
  :: d_step { st[a]==3 && rr[a]!=1 -> rr[a]=1; rb[a]=0; rh[a]=maxtok }
#define RENEWX(a,k) \
  :: d_step { st[a]==3 && rr[a]>0 && RCHK(a,k) && (L[k]==0 || C[k]<m[a] || (rr[a]==1 && !HAS(rb[a],k))) -> \
       if :: L[k]==0 -> L[k]=V(a); G[k]=m[a] :: else fi; \
       C[k]=MAX(C[k],m[a]); if :: rr[a]==1 -> rb[a]=rb[a]|BIT(k) :: else fi }
/* X: a renewal that starts after a higher token was issued must not succeed */
#define RENEWD(a) \
  :: d_step { rr[a]==1 && CNT(rb[a])>=QN -> assert(m[a]>=rh[a]); rr[a]=2; rb[a]=0; rh[a]=0 }

/* resource: reject token < highest seen */
#define WRITE(a) \
  :: d_step { st[a]==3 && m[a]>=hi && cur!=V(a) -> \
       assert(!HAS(superseded,V(a)));  /* R: no A,B,A */ \
       hi=m[a]; if :: cur!=0 -> superseded=superseded|BIT(cur) :: else fi; cur=V(a) }

#define LOST(k) \
  :: d_step { C[k]>0 && CNT(lostset|BIT(k))<=LOSE && inc[k]<3 -> \
       lostset=lostset|BIT(k); L[k]=0; G[k]=0; C[k]=0; inc[k]=inc[k]+INC }

#if N == 3
#define K1(X,a) X(a,0) X(a,1) X(a,2)
#define KS(X)   X(0) X(1) X(2)
#define SUBS(a) CHOOSE(a,3) CHOOSE(a,5) CHOOSE(a,6) CHOOSE(a,7)
#define SUB1(a) CHOOSE(a,1) CHOOSE(a,2) CHOOSE(a,4)
#elif N == 4
#define K1(X,a) X(a,0) X(a,1) X(a,2) X(a,3)
#define KS(X)   X(0) X(1) X(2) X(3)
#define SUBS(a) CHOOSE(a,7) CHOOSE(a,11) CHOOSE(a,13) CHOOSE(a,14) CHOOSE(a,15) \
 CHOOSE(a,3) CHOOSE(a,5) CHOOSE(a,6) CHOOSE(a,9) CHOOSE(a,10) CHOOSE(a,12)
#define SUB1(a)
#elif N == 5
#define K1(X,a) X(a,0) X(a,1) X(a,2) X(a,3) X(a,4)
#define KS(X)   X(0) X(1) X(2) X(3) X(4)
#define SUBS(a) CHOOSE(a,7) CHOOSE(a,11) CHOOSE(a,13) CHOOSE(a,14) CHOOSE(a,15) \
 CHOOSE(a,19) CHOOSE(a,21) CHOOSE(a,22) CHOOSE(a,23) CHOOSE(a,25) CHOOSE(a,26) \
 CHOOSE(a,27) CHOOSE(a,28) CHOOSE(a,29) CHOOSE(a,30) CHOOSE(a,31)
#define SUB1(a)
#endif
#if A == 2
#define AS(X)  X(0) X(1)
#define AKS(X) K1(X,0) K1(X,1)
#elif A == 3
#define AS(X)  X(0) X(1) X(2)
#define AKS(X) K1(X,0) K1(X,1) K1(X,2)
#elif A == 4
#define AS(X)  X(0) X(1) X(2) X(3)
#define AKS(X) K1(X,0) K1(X,1) K1(X,2) K1(X,3)
#endif
#if HMAX == 0
#define STARTS(a) START(a)
#elif HMAX == 1
#define STARTS(a) STARTH(a,0) STARTH(a,1)
#elif HMAX == 2
#define STARTS(a) STARTH(a,0) STARTH(a,1) STARTH(a,2)
#elif HMAX == 3
#define STARTS(a) STARTH(a,0) STARTH(a,1) STARTH(a,2) STARTH(a,3)
#else
#define STARTS(a) STARTH(a,0) STARTH(a,1) STARTH(a,2) STARTH(a,3) STARTH(a,4)
#endif

active proctype world()
{
end:
  do
  AS(STARTS)
  AKS(P1)
  AS(SUBS)
#if ANYM
  AS(SUB1)
#endif
#if !NOSEAL
  AKS(SEALX)
#endif
  AS(SUCCESS)
  KS(EXPIRE)
#if UPJUMP
  KS(UP)
#endif
#if RENEW
  AS(RENEWS)
  AKS(RENEWX)
  AS(RENEWD)
#endif
#if RES
  AS(WRITE)
#endif
#if LOSE
  KS(LOST)
#endif
  od
}
